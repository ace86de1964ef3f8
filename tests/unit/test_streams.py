"""Large inputs through both clients, before made-up servers: order, memory, errors, time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import pytest

from rose_client import AsyncRoseClient, ChunkLimits, EmbeddedBlock, RequestError, RoseClient
from rose_client.streams import blocks_of
from tests.support.fake_triton import Call, FakeTriton, RefusalError, embeddings
from tests.support.waiting import wait_until

_LIMITS = ChunkLimits(max_texts=4)
_IN_FLIGHT = 3


@pytest.fixture
def fake(fake_server: FakeTriton) -> FakeTriton:
    fake_server.infer = _numbers
    return fake_server


def _numbers(call: Call) -> Any:
    """Of texts that are numbers the vectors that hold them."""
    values = np.array([[[float(text)] for text in call.inputs["TEXT"]]], np.float32)
    return {"EMBEDDING": values, "TOKEN_COUNT": np.ones(values.shape[:2], np.int32)}


Run = Callable[..., list[EmbeddedBlock]]


def _sync(url: str, texts: Any, timeout: float = 20.0, **options: Any) -> list[EmbeddedBlock]:
    with RoseClient(url, timeout=timeout, limits=_LIMITS, max_in_flight=_IN_FLIGHT) as client:
        return list(client.embed_many(texts, **options))


def _asyncio(url: str, texts: Any, timeout: float = 20.0, **options: Any) -> list[EmbeddedBlock]:
    async def embed() -> list[EmbeddedBlock]:
        async with AsyncRoseClient(url, timeout=timeout, limits=_LIMITS, max_in_flight=_IN_FLIGHT) as client:
            return [block async for block in client.embed_many(texts, **options)]

    return asyncio.run(embed())


_both = pytest.mark.parametrize("run", [_sync, _asyncio])


def _texts(count: int) -> Iterator[str]:
    return (str(number) for number in range(count))


def _row(blocks: Iterable[EmbeddedBlock]) -> list[int]:
    rows = []
    for block in blocks:
        assert block.first == len(rows)
        assert [float(text) for text in block.texts] == block.embeddings.vectors[:, 0].tolist()
        rows += [int(text) for text in block.texts]
    return rows


@_both
def test_blocks_come_in_the_order_of_the_texts(run: Run, fake: FakeTriton) -> None:
    slow = threading.Semaphore(1)

    def infer(call: Call) -> Any:
        if call.inputs["TEXT"][0] in (b"0", b"8") and slow.acquire(blocking=False):
            time.sleep(0.2)
        return _numbers(call)

    fake.infer = infer
    blocks = run(fake.url, _texts(42))
    assert _row(blocks) == list(range(42))
    assert [len(block.texts) for block in blocks] == [4] * 10 + [2]
    assert [call.parameters.get("input_type") for call in fake.calls] == [None] * 11


@_both
def test_options_travel(run: Run, fake: FakeTriton) -> None:
    run(fake.url, _texts(5), input_type="document")
    assert [call.parameters["input_type"] for call in fake.calls] == ["document"] * 2


@_both
def test_nothing_gives_nothing(run: Run, fake: FakeTriton) -> None:
    assert run(fake.url, iter(())) == []
    assert fake.calls == []


def test_no_more_is_read_than_what_is_under_way(fake: FakeTriton) -> None:
    """And what is under way is all that a bounded number of blocks holds."""
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for text in _texts(1000):
            read += 1
            yield text

    with RoseClient(fake.url, limits=_LIMITS, max_in_flight=_IN_FLIGHT) as client:
        blocks = client.embed_many(texts())
        assert read == 0
        for number in range(20):
            next(blocks)
            # A block is known to be full only with the text after it.
            assert read <= (_IN_FLIGHT + number) * 4 + 1
        blocks.close()
    assert len(fake.calls) <= 20 + _IN_FLIGHT


async def test_asyncio_reads_no_more_either(fake: FakeTriton) -> None:
    read = 0

    async def texts() -> AsyncIterator[str]:
        nonlocal read
        for text in _texts(1000):
            read += 1
            yield text

    seen = 0
    async with (
        AsyncRoseClient(fake.url, limits=_LIMITS, max_in_flight=_IN_FLIGHT) as client,
        aclosing(client.embed_many(texts())) as blocks,
    ):
        async for block in blocks:
            assert block.first == seen * 4
            assert read <= (_IN_FLIGHT + seen) * 4 + 1
            seen += 1
            if seen == 20:
                break
    assert len(fake.calls) <= 20 + _IN_FLIGHT


@_both
def test_several_requests_are_under_way(run: Run, fake: FakeTriton) -> None:
    together = threading.Barrier(_IN_FLIGHT)

    def infer(call: Call) -> Any:
        together.wait(10)
        return _numbers(call)

    fake.infer = infer
    assert len(run(fake.url, _texts(4 * _IN_FLIGHT * 2))) == _IN_FLIGHT * 2


@_both
@pytest.mark.parametrize(("lane", "lanes"), [(None, [None, "bulk", "bulk"]), ("online", ["online"] * 3)])
def test_blocks_behind_the_first_are_bulk_work(run: Run, fake: FakeTriton, lane: str | None, lanes: list[str]) -> None:
    """However small the last is; the first alone may be a query."""
    run(fake.url, _texts(9), **({} if lane is None else {"lane": lane}))
    calls = sorted(fake.calls, key=lambda call: int(call.inputs["TEXT"][0]))
    assert [call.parameters.get("lane") for call in calls] == lanes


@_both
def test_a_busy_server_is_asked_again(run: Run, fake: FakeTriton) -> None:
    refused = threading.Semaphore(3)

    def infer(call: Call) -> Any:
        if refused.acquire(blocking=False):
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "the queue is full; retry after 5 ms")
        return _numbers(call)

    fake.infer = infer
    assert _row(run(fake.url, _texts(30))) == list(range(30))
    assert len(fake.calls) == 8 + 3


@_both
def test_an_error_names_the_texts_of_the_whole_input(run: Run, fake: FakeTriton) -> None:
    def infer(call: Call) -> Any:
        if b"13" in call.inputs["TEXT"]:
            raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "TEXT element 1 has 300 tokens: the limit is 256")
        return _numbers(call)

    fake.infer = infer
    with pytest.raises(RequestError) as refusal:
        run(fake.url, _texts(40))
    assert refusal.value.message == "texts 12 to 15: TEXT element 13 has 300 tokens: the limit is 256"


@_both
def test_the_time_of_a_block_is_bounded(run: Run, fake: FakeTriton) -> None:
    fake.infer = lambda call: fake.wait_until_unwanted(call) and _numbers(call)
    with pytest.raises(RequestError, match="texts 0 to 3") as refusal:
        run(fake.url, _texts(5), timeout=0.3)
    assert refusal.value.status == "DEADLINE_EXCEEDED"


def test_time_stands_still_while_the_caller_is_busy(fake: FakeTriton) -> None:
    """A block that is refused meanwhile still has its time afterwards."""
    refused = threading.Event()

    def infer(call: Call) -> Any:
        if b"4" in call.inputs["TEXT"] and not refused.is_set():
            refused.set()
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "the queue is full; retry after 5 ms")
        return _numbers(call)

    fake.infer = infer
    with RoseClient(fake.url, timeout=1.5, limits=_LIMITS, max_in_flight=_IN_FLIGHT) as client:
        blocks = client.embed_many(_texts(12))
        rows = [*next(blocks).texts]
        wait_until(refused.is_set, "a block was refused")
        time.sleep(1.6)
        rows += [text for block in blocks for text in block.texts]
    assert rows == list(_texts(12))


@_both
@pytest.mark.parametrize(("texts", "message"), [("tea", "single string"), (["1"] * 5 + [6], r"texts\[5\] is a int")])
def test_what_is_no_text_is_refused(run: Run, fake: FakeTriton, texts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        run(fake.url, texts)


def test_a_bar_is_shown_only_to_whoever_asks(fake: FakeTriton, capfd: pytest.CaptureFixture[str]) -> None:
    _sync(fake.url, _texts(9))
    assert capfd.readouterr() == ("", "")
    _sync(fake.url, list(_texts(9)), progress=True)
    assert "9/9" in capfd.readouterr().err
    _sync(fake.url, _texts(9), progress=True, total=12)
    assert "9/12" in capfd.readouterr().err
    _asyncio(fake.url, _texts(9), progress=True)
    assert "9/?" in capfd.readouterr().err


def test_blocks_are_those_of_a_call() -> None:
    texts = ["a" * 40, "b" * 40, "c" * 400, "d", ""]  # 12, 12, 102, 3 and 2 tokens
    assert [(block.first, block.items) for block in blocks_of(texts, ChunkLimits(max_tokens=24))] == [
        (0, [b"a" * 40, b"b" * 40]),
        (2, [b"c" * 400]),
        (3, [b"d", b""]),
    ]


@pytest.mark.parametrize("others", [None, ["2 a", "1"]])
def test_similarity_is_the_cosine(fake: FakeTriton, others: list[str] | None) -> None:
    def infer(call: Call) -> Any:
        assert call.parameters["normalize"] is True
        return embeddings(call)

    fake.infer = infer
    texts = ["1", "2", "1 b"]
    with RoseClient(fake.url) as client:
        found = client.similarity(texts, others)
        with pytest.raises(ValueError, match="outputs cannot be chosen"):
            client.similarity(texts, outputs=["int8"])
    same = [[float(one[0] == other[0]) for other in (others or texts)] for one in texts]
    assert found.tolist() == same

    async def ask() -> Any:
        async with AsyncRoseClient(fake.url) as client:
            return await client.similarity(texts, others)

    assert asyncio.run(ask()).tolist() == same
