"""A hundred and more requests of mixed sizes at once: every row reaches its own request and place."""

from __future__ import annotations

import asyncio
import random

import pytest

from rose_client import AsyncRoseClient
from rose_ensemble.server_process import Endpoints
from tests.support.oracle import Oracle
from tests.support.texts import make_texts
from tests.support.vectors import assert_close

_REQUESTS = 150


async def test_150_requests_at_once(server: Endpoints, oracle: Oracle) -> None:
    pool = make_texts(40, longest=6, seed=5)
    draw = random.Random(6)
    requests = [draw.choices(pool, k=draw.randint(1, 4)) for _ in range(_REQUESTS)]
    async with AsyncRoseClient(server.grpc) as client:
        answers = await asyncio.gather(*(client.embed_with_counts(texts) for texts in requests))
    for texts, answer in zip(requests, answers, strict=True):
        assert_close(answer.vectors, oracle.vectors(texts))
        assert answer.token_counts.tolist() == [len(oracle.model.tokenizer(text)["input_ids"]) for text in texts]


@pytest.mark.slow
def test_a_request_of_many_batches(server: Endpoints, oracle: Oracle) -> None:
    pool = make_texts(40, longest=60, seed=7)
    texts = random.Random(8).choices(pool, k=150)

    async def embed() -> object:
        async with AsyncRoseClient(server.grpc) as client:
            return await client.embed(texts)

    assert_close(asyncio.run(embed()), oracle.vectors(texts))
