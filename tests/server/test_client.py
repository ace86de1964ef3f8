"""The Python clients: right values, options, counts, and errors a program can act on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from rose_client import AsyncRoseClient, ChunkLimits, RequestError, RoseClient
from rose_ensemble.server_process import Endpoints
from tests.support.cases import HARBOUR, POT_IDS, TEA_IDS
from tests.support.oracle import Oracle
from tests.support.texts import make_texts
from tests.support.vectors import assert_close

_TEXTS = [HARBOUR, "tea", "stone " * 300]


@pytest.fixture
def client(server: Endpoints) -> Iterator[RoseClient]:
    with RoseClient(server.grpc) as client:
        yield client


def test_vectors_and_counts(client: RoseClient, oracle: Oracle) -> None:
    answer = client.embed_with_counts(_TEXTS)
    assert answer.vectors.dtype == np.float32
    assert_close(answer.vectors, oracle.vectors(_TEXTS))
    assert answer.token_counts.tolist() == [12, 3, 256]


def test_prompt_goes_in_front(client: RoseClient, oracle: Oracle) -> None:
    assert_close(client.embed(["tea"], prompt="query: "), oracle.vectors(["query: tea"]))


def test_input_type_without_such_a_prompt_changes_nothing(client: RoseClient, oracle: Oracle) -> None:
    assert_close(client.embed(["tea"], input_type="query"), oracle.vectors(["tea"]))


def test_without_normalisation_only_the_length_differs(client: RoseClient, oracle: Oracle) -> None:
    raw = client.embed(_TEXTS, normalize=False)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.1).all()
    assert_close(raw / lengths, oracle.vectors(_TEXTS))


def test_truncation_from_the_left_keeps_the_end(client: RoseClient, oracle: Oracle) -> None:
    long = "tractor " * 100 + "violin " * 254
    assert_close(client.embed([long], truncation_direction="left"), oracle.vectors(["violin " * 254]))


def test_refusal_carries_status_and_message(client: RoseClient) -> None:
    with pytest.raises(RequestError, match="limit is 256") as refusal:
        client.embed(["stone " * 300], truncate=False)
    assert refusal.value.status == "INVALID_ARGUMENT"


def test_unknown_model(server: Endpoints) -> None:
    with RoseClient(server.grpc, model="nothing") as client, pytest.raises(RequestError) as refusal:
        client.embed(["tea"])
    assert refusal.value.status in ("NOT_FOUND", "INVALID_ARGUMENT")
    assert "nothing" in refusal.value.message


def test_deadline(server: Endpoints) -> None:
    with RoseClient(server.grpc, timeout=1e-4) as client, pytest.raises(RequestError) as refusal:
        client.embed(["stone " * 200] * 50)
    assert refusal.value.status == "DEADLINE_EXCEEDED"


def test_caller_mistakes(client: RoseClient) -> None:
    with pytest.raises(TypeError, match="single string"):
        client.embed("tea")
    with pytest.raises(ValueError, match="empty"):
        client.embed([])
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        client.embed(["tea", 5])  # type: ignore[list-item]


def test_any_number_of_texts(server: Endpoints, oracle: Oracle) -> None:
    texts = make_texts(10, longest=12, seed=5) * 5
    with RoseClient(server.grpc, limits=ChunkLimits(max_texts=8)) as client:
        blocks = list(client.embed_many(iter(texts)))
    assert [text for block in blocks for text in block.texts] == texts
    assert_close(np.concatenate([block.embeddings.vectors for block in blocks]), oracle.vectors(texts))


def test_similarity(client: RoseClient, oracle: Oracle) -> None:
    pots = ["a pot of tea", "a tractor"]
    assert_close(client.similarity(_TEXTS, pots), oracle.vectors(_TEXTS) @ oracle.vectors(pots).T)
    assert_close(client.similarity(_TEXTS), oracle.vectors(_TEXTS) @ oracle.vectors(_TEXTS).T)


async def test_asyncio_client(server: Endpoints, oracle: Oracle) -> None:
    async with AsyncRoseClient(server.grpc) as client:
        answers = await asyncio.gather(*(client.embed([text]) for text in _TEXTS))
        assert_close(np.concatenate(answers), oracle.vectors(_TEXTS))
        with pytest.raises(RequestError) as refusal:
            await client.embed(["stone " * 300], truncate=False)
    assert refusal.value.status == "INVALID_ARGUMENT"


async def test_token_ids(server: Endpoints, oracle: Oracle) -> None:
    async with AsyncRoseClient(server.grpc) as client:
        answer = await client.embed_tokens([TEA_IDS, POT_IDS])
        assert_close(answer.vectors, oracle.vectors(["tea", "pot"]))
        assert answer.token_counts.tolist() == [3, 3]
        with pytest.raises(ValueError, match="empty"):
            await client.embed_tokens([])
