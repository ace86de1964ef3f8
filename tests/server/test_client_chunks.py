"""Calls in several chunks, over one server and over two, also when one of the two fails on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from rose_client import AsyncRoseClient, ChunkLimits, Embeddings, EmbedOptions, RequestError, RetryPolicy, RoseClient
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server
from tests.support.oracle import Oracle
from tests.support.processes import processes_mentioning
from tests.support.prometheus import Counters
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until

_NONE = EmbedOptions()
_WHOLE = ChunkLimits(max_tokens=1_000_000, max_texts=4096)
_TEXTS = make_texts(330, longest=5, seed=11)  # more than the 256 of a chunk
_LONG_TEXTS = make_texts(160, longest=120, seed=12) * 4  # many seconds of work on a CPU


class Run(Protocol):
    """Embeds texts by way of one of the clients."""

    def __call__(self, urls: str | list[str], texts: list[str], **settings: Any) -> Embeddings: ...


def _sync(urls: str | list[str], texts: list[str], *, options: EmbedOptions = _NONE, **settings: Any) -> Embeddings:
    with RoseClient(urls, **{"timeout": 200, **settings}) as client:
        return client.embed_with_counts(texts, **options)


def _asyncio(urls: str | list[str], texts: list[str], *, options: EmbedOptions = _NONE, **settings: Any) -> Embeddings:
    async def embed() -> Embeddings:
        async with AsyncRoseClient(urls, **{"timeout": 200, **settings}) as client:
            return await client.embed_with_counts(texts, **options)

    return asyncio.run(embed())


_both_clients = pytest.mark.parametrize("run", [_sync, _asyncio])


@contextmanager
def _another_server(folder: Path, endpoints: Endpoints) -> Iterator[ServerProcess]:
    """A server with the default pipeline, not waited for."""
    store = Repository(folder / "repository")
    pipeline = Pipeline()
    store.add(pipeline)
    with (folder / "tritonserver.log").open("wb") as log:
        process = ServerProcess(find_server(), store.folder, [pipeline.name], endpoints, log)
        with process:
            yield process


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A server beside the session's."""
    with _another_server(tmp_path_factory.mktemp("second"), Endpoints.free("127.0.0.1")) as process:
        process.wait_until_ready()
        yield process.endpoints


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server to be ended by the test, which takes its own time if it cannot answer any more: killed at last."""
    with _another_server(tmp_path, Endpoints.free("127.0.0.1")) as process:
        process.wait_until_ready()
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(server: Endpoints) -> Embeddings:
    """`_TEXTS` in one request."""
    return _sync(server.grpc, _TEXTS, limits=_WHOLE)


@pytest.fixture(scope="module")
def long_vectors(server: Endpoints) -> npt.NDArray[np.float32]:
    """`_LONG_TEXTS` in one request."""
    return _sync(server.grpc, _LONG_TEXTS, limits=_WHOLE).vectors


def _sequences(counters: Counters) -> int:
    return counters.read("rose_sequences_total")


def test_one_request_is_right(whole: Embeddings, oracle: Oracle) -> None:
    picked = range(0, len(_TEXTS), 20)
    assert_close(whole.vectors[picked], oracle.vectors(_TEXTS[index] for index in picked))


@_both_clients
@pytest.mark.parametrize(("texts", "requests"), [pytest.param(_TEXTS[:256], 1, marks=pytest.mark.slow), (_TEXTS, 2)])
def test_requests_of_a_call(
    run: Run, texts: list[str], requests: int, server: Endpoints, counters: Counters, whole: Embeddings
) -> None:
    before = counters.read("rose_requests_total")
    answer = run(server.grpc, texts)
    assert counters.read("rose_requests_total") - before == requests
    assert_close(answer.vectors, whole.vectors[: len(texts)])
    assert answer.token_counts.tolist() == whole.token_counts[: len(texts)].tolist()


@_both_clients
@pytest.mark.slow
def test_two_servers_share_a_call(
    run: Run, server: Endpoints, second: Endpoints, counters: Counters, whole: Embeddings
) -> None:
    others = Counters(f"http://{second.metrics}/metrics")
    _sync(second.grpc, ["tea"])  # a counter is on the page from its first use on
    before = _sequences(counters), _sequences(others)
    answer = run([server.grpc, second.grpc], _TEXTS, limits=ChunkLimits(max_texts=32))
    here, there = _sequences(counters) - before[0], _sequences(others) - before[1]
    assert here + there == len(_TEXTS)
    assert min(here, there) >= 4 * 32  # each is handed four chunks before the first answer
    assert_close(answer.vectors, whole.vectors)
    assert answer.token_counts.tolist() == whole.token_counts.tolist()


@pytest.mark.parametrize(
    ("run", "number"),
    [
        pytest.param(_sync, signal.SIGTERM, marks=pytest.mark.slow),
        (_sync, signal.SIGKILL),
        pytest.param(_asyncio, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_one_of_two_servers_ends_on_the_way(
    run: Run, number: signal.Signals, server: Endpoints, doomed: ServerProcess, long_vectors: npt.NDArray[np.float32]
) -> None:
    others = Counters(f"http://{doomed.endpoints.metrics}/metrics")
    _sync(doomed.endpoints.grpc, ["tea"])
    before = _sequences(others)
    with ThreadPoolExecutor(1) as caller:
        urls = [server.grpc, doomed.endpoints.grpc]
        call = caller.submit(run, urls, _LONG_TEXTS, limits=ChunkLimits(max_texts=8))
        wait_until(lambda: _sequences(others) > before, "both servers have work")
        os.killpg(doomed.pid, number)
        assert not call.done()
        assert_close(call.result().vectors, long_vectors)


@pytest.mark.slow
def test_a_dead_stub_is_escaped(server: Endpoints, doomed: ServerProcess, tmp_path: Path, whole: Embeddings) -> None:
    """Triton leaves the model's process dead and the model ready: only its answers tell."""
    (stub,) = (pid for pid in processes_mentioning(tmp_path / "repository" / "tokenize") if pid != doomed.pid)
    os.kill(stub, signal.SIGKILL)
    for run in (_sync, _asyncio):
        answer = run([server.grpc, doomed.endpoints.grpc], _TEXTS, limits=ChunkLimits(max_texts=32))
        assert_close(answer.vectors, whole.vectors)
        with pytest.raises(RequestError, match="not healthy") as failed:
            run(doomed.endpoints.grpc, ["tea"])
        assert failed.value.status == "INTERNAL"


@pytest.mark.slow
def test_a_server_that_comes_up_meanwhile_is_found(tmp_path: Path, oracle: Oracle) -> None:
    endpoints = Endpoints.free("127.0.0.1")
    patient = RetryPolicy(longest_wait=0.5, absent_tries=1000)
    with _another_server(tmp_path, endpoints), RoseClient(endpoints.grpc, timeout=120, retries=patient) as client:
        assert_close(client.embed(["tea"]), oracle.vectors(["tea"]))


@_both_clients
def test_a_refusal_names_the_text_and_ends_the_call(run: Run, server: Endpoints, counters: Counters) -> None:
    texts = ["tea"] * 400
    texts[70] = "stone " * 300
    before = _sequences(counters)
    with pytest.raises(RequestError, match=r"texts 64 to 95: .*TEXT element 70 has 302 tokens") as refused:
        run(server.grpc, texts, options={"truncate": False}, limits=ChunkLimits(max_texts=32), max_in_flight=1)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert _sequences(counters) - before == 64  # the two chunks before it, and none of the ten behind it


@_both_clients
def test_the_deadline_is_the_whole_calls(run: Run, server: Endpoints) -> None:
    with pytest.raises(RequestError) as late:
        run(server.grpc, _LONG_TEXTS, timeout=0.5, limits=ChunkLimits(max_texts=8))
    assert late.value.status == "DEADLINE_EXCEEDED"
