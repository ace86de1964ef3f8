"""A text's vector does not depend on what shares its batch.

As in huggingface/text-embeddings-inference#648 and #882, vllm-project/vllm#15393 and
huggingface/sentence-transformers#1356.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio

from rose_ensemble.server_process import Endpoints
from tests.support.cases import HARBOUR
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.wire import Answer, embed, text_input

_UNEQUAL = [HARBOUR, "tea", "stone " * 300, ""]
_EQUAL = ["stone by water", "violin by bread", "tractor by tea", "copper by oak"]
_ONE_LONG = ["stone i by water"] * 64 + ["grey stone lies " * 84 + "by water"]
_MOST_ROUNDS = 30
_SHARED = ("rose_shared_batches_total", "rose_mixed_batches_total")


@pytest.mark.parametrize("texts", [_UNEQUAL, _EQUAL, _ONE_LONG], ids=["unequal", "equal", "one-long"])
def test_every_row_is_its_lone_vector(
    grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, texts: list[str]
) -> None:
    assert_close(embed(grpc_client, texts).rows, oracle.vectors(texts))


def test_long_text_of_that_case_has_254_words() -> None:
    assert len(_ONE_LONG[-1].split()) == 254


@pytest.mark.parametrize("size", [1, 2, 7, 33])
def test_at_every_batch_size(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, size: int) -> None:
    pool = _UNEQUAL + _EQUAL
    rounds = math.ceil(len(pool) / size)
    texts = list(itertools.islice(itertools.cycle(pool), rounds * size))
    for first in range(0, len(texts), size):
        chunk = texts[first : first + size]
        assert_close(embed(grpc_client, chunk).rows, oracle.vectors(chunk))


async def test_requests_of_different_sizes_share_batches(server: Endpoints, oracle: Oracle, counters: Counters) -> None:
    pool = make_texts(28, longest=12, seed=2)
    mix = [pool[:1], pool[1:8], pool[8:10], pool[10:11], pool[11:14], pool[14:19], pool[19:20], pool[20:28]] * 4
    before = counters.page()
    async with grpcclient_aio.InferenceServerClient(server.grpc) as client:
        for _ in range(_MOST_ROUNDS):
            answers = await asyncio.gather(*(_embed(client, texts) for texts in mix))
            for texts, answer in zip(mix, answers, strict=True):
                assert_close(answer.rows, oracle.vectors(texts))
            after = counters.page()
            if all(after.read(name) > before.read(name) for name in _SHARED):
                return
    pytest.fail(f"no batch held requests of different sizes in {_MOST_ROUNDS} rounds of {len(mix)} at once")


async def _embed(client: grpcclient_aio.InferenceServerClient, texts: Sequence[str]) -> Answer:
    return Answer.of(await client.infer("embed", [text_input(grpcclient, texts)]))
