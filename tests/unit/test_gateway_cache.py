"""The gateway's cache: what is kept under which key, how much of it, and that answers stay what they were."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest

from rose_client import Embeddings, EmbedOptions, SparseVector
from rose_client.gateway.cache import VectorCache, entries_of, joined, keys_of
from tests.support.fake_triton import EMBED, QUANTIZED, Call, FakeTriton, embeddings, fake_triton
from tests.support.gateways import running_gateway

_NONE = EmbedOptions()


@dataclass
class _Watch:
    asked: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0
    evictions: int = 0

    def cache_asked(self, hits: int, misses: int) -> None:
        self.asked.append((hits, misses))

    def cache_changed(self, size: int, evictions: int) -> None:
        self.size = size
        self.evictions += evictions


def _answer(*values: float, dim: int = 4) -> Embeddings:
    rows = np.repeat(np.array(values, np.float32)[:, None], dim, axis=1)
    return Embeddings({"float": rows}, np.array(values, np.int32))


def test_the_one_not_asked_for_lately_goes_first() -> None:
    watch = _Watch()
    entries = entries_of(_answer(1, 2, 3))
    cache = VectorCache(2 * entries[0].num_bytes + 1, watch)
    cache.put({b"1": entries[0]})
    cache.put({b"2": entries[1]})
    cache.get([b"1"])
    cache.put({b"3": entries[2]})
    assert set(cache.get([b"1", b"2", b"3"])) == {b"1", b"3"}
    assert watch.asked == [(1, 0), (2, 1)]
    assert (watch.size, watch.evictions) == (2 * entries[0].num_bytes, 1)


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    watch = _Watch()
    small, large = entries_of(_answer(1)), entries_of(_answer(2, dim=100_000))
    cache = VectorCache(10_000, watch)
    cache.put({b"small": small[0]})
    cache.put({b"large": large[0]})
    assert set(cache.get([b"small", b"large"])) == {b"small"}
    assert watch.evictions == 0


def test_the_same_text_again_takes_no_more_room() -> None:
    watch = _Watch()
    cache = VectorCache(10_000, watch)
    for _ in range(5):
        cache.put({b"1": entries_of(_answer(1))[0]})
    assert watch.size == entries_of(_answer(1))[0].num_bytes


def test_memory_is_what_it_says() -> None:
    watch = _Watch()
    cache = VectorCache(2_000_000, watch)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(0, 4000, 50):
            items = [str(number + place).encode() for place in range(50)]
            cache.put(dict(zip(keys_of("embed", _NONE, items), entries_of(_answer(*range(50), dim=64)), strict=True)))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert watch.evictions > 0
    assert 1_990_000 < watch.size <= 2_000_000
    assert 0.8 * watch.size < used <= watch.size


def test_every_form_of_a_vector_comes_back() -> None:
    sparse = [SparseVector(np.arange(n, dtype=np.int32), np.ones(n, np.float32) / (n + 1)) for n in (0, 2)]
    tokens = [np.full((n, 3), n, np.float32) for n in (1, 2)]
    arrays = {"float": np.eye(2, 4, dtype=np.float32), "int8": np.array([[1, -2], [3, 4]], np.int8)}
    arrays |= {"binary": np.array([[255], [1]], np.uint8)}
    answer = Embeddings({**arrays, "sparse": sparse, "token": tokens}, np.array([3, 4], np.int32))
    entries = entries_of(answer)
    assert all(not np.shares_memory(entries[0].values[name], array) for name, array in arrays.items())
    again = joined([entries[1], entries[0], entries[1]])
    for name, array in arrays.items():
        assert again.arrays[name].dtype == array.dtype
        assert again.arrays[name].tolist() == array[[1, 0, 1]].tolist()
    assert [vector.index.tolist() for vector in again.sparse] == [[0, 1], [], [0, 1]]
    assert [vectors.shape for vectors in again.tokens] == [(2, 3), (1, 3), (2, 3)]
    assert again.token_counts.tolist() == [4, 3, 4]


def test_keys_tell_apart_what_vectors_depend_on() -> None:
    ids = np.frombuffer(b"tea!", np.int32)
    distinct = [
        *keys_of("a", _NONE, [b"tea!", b"tea", b"", ids, ids[:0]]),
        *keys_of("b", _NONE, [b"tea!"]),
        *keys_of("a", {"dimensions": 4}, [b"tea!"]),
        *keys_of("a", {"dimensions": 8}, [b"tea!"]),
        *keys_of("a", {"normalize": True}, [b"tea!"]),
        *keys_of("a", {"normalize": False}, [b"tea!"]),
        *keys_of("a", {"prompt": "tea"}, [b"!"]),
        *keys_of("a", {"outputs": ["int8"]}, [b"tea!"]),
        *keys_of("a", {"outputs": ["int8", "float"]}, [b"tea!"]),
    ]
    assert len(set(distinct)) == len(distinct)
    assert {len(key) for key in distinct} == {32}
    travelling: EmbedOptions = {"traceparent": "x", "tracestate": "y", "lane": "bulk"}
    assert keys_of("a", travelling, [b"tea!"]) == keys_of("a", _NONE, [b"tea!"])
    reordered = (
        keys_of("a", {"prompt": "p", "dimensions": 4}, [b"t"]),
        keys_of("a", {"dimensions": 4, "prompt": "p"}, [b"t"]),
    )
    assert reordered[0] == reordered[1]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    with fake_triton(models={"embed": EMBED, "codes": QUANTIZED}) as fake:
        yield fake


@pytest.fixture
def gateway(fake: FakeTriton) -> Iterator[httpx.Client]:
    fake.infer = embeddings
    with running_gateway(fake.url, cache_bytes=10_000) as gateway:
        gateway.get("/v1/models")
        fake.calls.clear()
        yield gateway


def _texts(fake: FakeTriton) -> list[list[bytes]]:
    return [list(call.inputs["TEXT"]) for call in fake.calls]


def _count(gateway: httpx.Client, name: str) -> float:
    lines = gateway.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"rose_gateway_{name} "))


def _embed(gateway: httpx.Client, texts: Any, **fields: Any) -> Any:
    answer = gateway.post("/v1/embeddings", json={"model": "embed", "input": texts, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_only_new_texts_are_asked_for(gateway: httpx.Client, fake: FakeTriton) -> None:
    first = _embed(gateway, ["tea", "pot"])
    second = _embed(gateway, ["ale", "pot", "ale", "tea"])
    assert _texts(fake) == [[b"tea", b"pot"], [b"ale"]]
    rows = [entry["embedding"] for entry in second["data"]]
    assert [row.index(1) for row in rows] == [ord(text) % 8 for text in "apat"]
    assert rows[1] == first["data"][1]["embedding"]
    assert second["usage"] == {"prompt_tokens": 4, "total_tokens": 4}  # as without a cache
    assert _embed(gateway, ["tea", "pot"]) == first
    counts = [_count(gateway, f"cache_{name}") for name in ("hits_total", "misses_total", "evictions_total")]
    assert counts == [4, 4, 0]
    assert 3 * 600 < _count(gateway, "cache_bytes") < 3 * 700
    assert 'rose_gateway_tokens_total{route="/v1/embeddings"} 3.0' in gateway.get("/metrics").text  # that were run


def test_options_routes_and_models_have_their_own(gateway: httpx.Client, fake: FakeTriton) -> None:
    for fields in ({}, {"input_type": "query"}, {"dimensions": 4}, {"model": "codes"}):
        for _ in range(2):
            _embed(gateway, "tea", **fields)
    assert len(fake.calls) == 4
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    gateway.post("/embed", json={"inputs": "tea", "model": "embed"}, headers={"traceparent": parent})
    assert len(fake.calls) == 5  # TEI's route says how to truncate and normalize


def test_a_cosine_rerank_uses_it(gateway: httpx.Client, fake: FakeTriton) -> None:
    body = {"model": "embed", "query": "pot", "documents": ["tea", "pan"]}
    first = gateway.post("/v2/rerank", json=body).json()
    body["query"] = "two"
    second = gateway.post("/v2/rerank", json=body).json()
    assert sorted(_texts(fake)) == [[b"pot"], [b"tea", b"pan"], [b"two"]]
    assert [result["index"] for result in first["results"]] == [1, 0]
    assert [result["index"] for result in second["results"]] == [0, 1]


def test_documents_in_chunks_are_not_kept(gateway: httpx.Client, fake: FakeTriton) -> None:
    for _ in range(2):
        body = {"model": "embed", "input": [["tea", "pot"]], "encoding_format": "base64"}
        assert gateway.post("/v1/contextualizedembeddings", json=body).status_code == 200
    assert len(fake.calls) == 2
    assert _count(gateway, "cache_misses_total") == 0


def test_failures_are_not_kept(gateway: httpx.Client, fake: FakeTriton) -> None:
    def fail(call: Call) -> Any:
        raise AssertionError

    fake.infer = fail
    assert gateway.post("/v1/embeddings", json={"input": "tea"}).status_code >= 500
    fake.infer = embeddings
    _embed(gateway, "tea")
    assert _count(gateway, "cache_hits_total") == 0


def test_readiness_asks_in_earnest(gateway: httpx.Client, fake: FakeTriton) -> None:
    _embed(gateway, "a")
    fake.calls.clear()
    assert gateway.get("/health").status_code == 200
    assert _texts(fake) == [[b"a"], [b"a"]]  # both models


def test_it_is_bounded(gateway: httpx.Client) -> None:
    for number in range(40):
        _embed(gateway, str(number))
    assert _count(gateway, "cache_bytes") <= 10_000
    assert _count(gateway, "cache_evictions_total") == 40 - 10_000 // (640 + 32)


def test_it_is_off_by_default(fake: FakeTriton) -> None:
    fake.infer = embeddings
    with running_gateway(fake.url) as gateway:
        gateway.get("/v1/models")
        fake.calls.clear()
        _embed(gateway, "tea")
        _embed(gateway, "tea")
    assert len(fake.calls) == 2
