"""Small requests that travel together: which, when, how many, and that each keeps what is its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import numpy as np
import pytest

from rose_client import Embeddings, EmbedOptions, RequestError
from rose_client.aio import AsyncRoseClient
from rose_client.chunking import Item
from rose_client.exchange import EmbedExchange
from rose_client.gateway.merging import MergePolicy, Merger
from tests.support.fake_triton import Call, FakeTriton, RefusalError, embeddings, fake_triton
from tests.support.gateways import running_gateway
from tests.support.waiting import wait_until

_PATIENT = MergePolicy(calls_per_server=1, longest_wait=30.0)


@dataclass
class _Watch:
    sent: list[int] = field(default_factory=list)
    parted: int = 0

    def call_sent(self, num_requests: int) -> None:
        self.sent.append(num_requests)

    def call_parted(self) -> None:
        self.parted += 1


@dataclass(eq=False)
class _Sent:
    """A call that came, to be answered by `end`."""

    items: list[Item]
    exchange: EmbedExchange
    began: float | None
    answer: asyncio.Future[None]

    def end(self, failure: Exception | None = None) -> None:
        if failure is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(failure)


@dataclass(eq=False)
class _Client:
    """Stands for a client: keeps every call until it is told to answer, with the numbers that the texts are."""

    calls: list[_Sent] = field(default_factory=list)
    cancelled: list[_Sent] = field(default_factory=list)

    async def exchange(
        self, items: Sequence[Item], exchange: EmbedExchange, *, began: float | None = None
    ) -> list[Embeddings]:
        sent = _Sent(list(items), exchange, began, asyncio.get_running_loop().create_future())
        self.calls.append(sent)
        try:
            await sent.answer
        except asyncio.CancelledError:
            self.cancelled.append(sent)
            raise
        numbers = [int(item) for item in items if isinstance(item, bytes)]
        return [Embeddings({"float": np.array(numbers, np.float32)[:, None]}, np.array(numbers, np.int32))]


class _Senders:
    """Requests through one merger, each a task."""

    def __init__(self, policy: MergePolicy = _PATIENT, num_servers: int = 1, timeout: float = 60.0) -> None:
        self.client, self.watch = _Client(), _Watch()
        self.merger = Merger(policy, num_servers, timeout, self.watch)
        self._count = 0

    async def send(self, *numbers: int, **options: Any) -> asyncio.Task[Embeddings]:
        """One more, which is on its way, or waits, when this returns."""
        self._count += 1
        items = [str(number).encode() for number in numbers]
        asked = cast("EmbedOptions", options)
        exchange = EmbedExchange("embed", asked, f"id{self._count}")
        tokens = self.merger.takes(items, asked)
        assert tokens is not None
        client = cast("AsyncRoseClient", self.client)
        task = asyncio.create_task(self.merger.embed(client, items, tokens, exchange))
        await _settle()
        return task


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _numbers(task: asyncio.Task[Embeddings]) -> list[int]:
    answer = await asyncio.wait_for(task, 10)
    assert answer.vectors[:, 0].tolist() == answer.token_counts.tolist()
    return cast("list[int]", answer.token_counts.tolist())


def _texts(client: _Client) -> list[list[Item]]:
    return [call.items for call in client.calls]


async def test_a_lone_request_leaves_at_once_and_as_it_is() -> None:
    senders = _Senders(MergePolicy(calls_per_server=1))
    for number in range(3):
        task = await senders.send(number)
        [*_, call] = senders.client.calls
        assert (call.exchange.options, call.exchange.request_id) == ({}, f"id{number + 1}")
        call.end()
        assert await _numbers(task) == [number]
    assert senders.watch.sent == [1, 1, 1]


async def test_who_waits_travels_together_and_each_gets_its_own() -> None:
    senders = _Senders()
    tasks = [await senders.send(1), await senders.send(2, 3), await senders.send(4), await senders.send(5, 6, 7)]
    assert _texts(senders.client) == [[b"1"]]
    senders.client.calls[0].end()
    await _settle()
    assert _texts(senders.client) == [[b"1"], [b"2", b"3", b"4", b"5", b"6", b"7"]]
    senders.client.calls[1].end()
    assert [await _numbers(task) for task in tasks] == [[1], [2, 3], [4], [5, 6, 7]]
    assert senders.watch.sent == [1, 3]


async def test_online_work_stays_online_however_much_travels() -> None:
    senders = _Senders()
    tasks = [await senders.send(number, dimensions=8) for number in range(40)]
    senders.client.calls[0].end()
    await _settle()
    merged = senders.client.calls[1].exchange
    assert merged.options == {"dimensions": 8, "lane": "online"}
    assert merged.request_id == "id2+38"
    senders.client.calls[1].end()
    assert [await _numbers(task) for task in tasks] == [[number] for number in range(40)]


async def test_as_many_calls_as_pay_for_each_server() -> None:
    senders = _Senders(MergePolicy(calls_per_server=2, longest_wait=30.0), num_servers=2)
    tasks = [await senders.send(number) for number in range(6)]
    assert _texts(senders.client) == [[b"0"], [b"1"], [b"2"], [b"3"]]
    senders.client.calls[2].end()
    await _settle()
    assert _texts(senders.client)[4:] == [[b"4", b"5"]]
    for call in senders.client.calls:
        if not call.answer.done():
            call.end()
    assert [await _numbers(task) for task in tasks] == [[number] for number in range(6)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"dimensions": 8}),
        ({"dimensions": 8}, {"dimensions": 16}),
        ({}, {"outputs": ["int8"]}),
        ({"outputs": ["int8"]}, {"outputs": ["binary"], "bit_order": "lsb"}),
        ({"prompt": "a"}, {"prompt": "b"}),
        ({}, {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}),
    ],
)
async def test_other_options_wait_for_nobody(first: dict[str, Any], second: dict[str, Any]) -> None:
    senders = _Senders()
    tasks = [await senders.send(1, **first), await senders.send(2, **second)]
    assert _texts(senders.client) == [[b"1"], [b"2"]]
    tasks += [await senders.send(3, **first), await senders.send(4, **second), await senders.send(5, **second)]
    for call in (0, 1):
        senders.client.calls[call].end()
        await _settle()
    assert _texts(senders.client)[2:] == [[b"3"], [b"4", b"5"]]
    for call in (2, 3):
        senders.client.calls[call].end()
    assert [await _numbers(task) for task in tasks] == [[1], [2], [3], [4], [5]]


async def test_equal_options_in_whatever_order_travel_together() -> None:
    senders = _Senders()
    await senders.send(1, dimensions=8, outputs=["float"])
    await senders.send(2, dimensions=8, outputs=["float"])
    await senders.send(3, outputs=["float"], dimensions=8)
    senders.client.calls[0].end()
    await _settle()
    assert _texts(senders.client) == [[b"1"], [b"2", b"3"]]
    senders.client.calls[1].end()
    await _settle()


async def test_nobody_waits_longer_than_allowed() -> None:
    senders = _Senders(MergePolicy(calls_per_server=1, longest_wait=0.01))
    tasks = [await senders.send(number) for number in range(3)]
    await asyncio.sleep(0.1)
    assert _texts(senders.client) == [[b"0"], [b"1", b"2"]]
    for call in senders.client.calls:
        call.end()
    assert [await _numbers(task) for task in tasks] == [[0], [1], [2]]


async def test_where_servers_are_quick_nobody_waits_long() -> None:
    senders = _Senders()
    tasks = [await senders.send(1), await senders.send(2)]
    senders.client.calls[0].end()  # it took next to nothing
    await _settle()
    tasks.append(await senders.send(3))
    deadline = time.monotonic() + 10  # of the 30 s that the policy allows
    while len(senders.client.calls) < 3 and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    assert _texts(senders.client)[1:] == [[b"2"], [b"3"]]
    for call in senders.client.calls[1:]:
        call.end()
    assert [await _numbers(task) for task in tasks] == [[1], [2], [3]]


async def test_calls_are_bounded_and_full_ones_leave() -> None:
    senders = _Senders(MergePolicy(calls_per_server=1, longest_wait=30.0, max_texts=4, max_request_texts=3))
    for numbers in ([1], [2, 3], [4, 5], [6, 7, 8], [9]):
        await senders.send(*numbers)
    assert _texts(senders.client) == [[b"1"], [b"2", b"3", b"4", b"5"], [b"6", b"7", b"8", b"9"]]
    by_tokens = _Senders(MergePolicy(calls_per_server=1, longest_wait=30.0, max_tokens=9, max_request_tokens=9))
    for number in range(5):  # three tokens each
        await by_tokens.send(number)
    assert _texts(by_tokens.client) == [[b"0"], [b"1", b"2", b"3"]]
    for call in senders.client.calls + by_tokens.client.calls:
        call.end()
    await _settle()
    by_tokens.client.calls[2].end()
    await _settle()


def test_what_is_not_small_travels_alone() -> None:
    merger = Merger(MergePolicy(), 1, 60.0, _Watch())
    assert merger.takes([b"x" * 4] * 8, {}) == 24
    assert merger.takes([b"x" * 4] * 9, {}) is None
    assert merger.takes([b"x" * 2040], {}) == 512
    assert merger.takes([b"x" * 2041], {}) is None
    assert merger.takes([np.zeros(512, np.int32)], {}) == 512
    assert merger.takes([np.zeros(513, np.int32)], {}) is None
    assert merger.takes([b"tea"], {"prompt": "x" * 2036}) is None


async def test_texts_and_token_ids_do_not_mix() -> None:
    senders = _Senders()
    await senders.send(1)
    exchange, client = EmbedExchange("embed", {}), cast("AsyncRoseClient", senders.client)
    ids = asyncio.create_task(senders.merger.embed(client, [np.array([7], np.int32)], 1, exchange))
    await _settle()
    assert len(senders.client.calls) == 2
    ids.cancel()
    senders.client.calls[0].end()
    await _settle()


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "INTERNAL"])
async def test_a_fault_is_its_senders_alone(status: str) -> None:
    senders = _Senders()
    tasks = [await senders.send(number) for number in range(4)]
    senders.client.calls[0].end()
    await _settle()
    senders.client.calls[1].end(RequestError(status, "TEXT element 1 is bad"))
    await _settle()
    alone = senders.client.calls[2:]
    assert [(call.items, call.exchange.options) for call in alone] == [([b"1"], {}), ([b"2"], {}), ([b"3"], {})]
    alone[0].end()
    alone[1].end(RequestError(status, "TEXT element 0 is bad"))
    alone[2].end()
    with pytest.raises(RequestError, match="TEXT element 0 is bad"):
        await tasks[2]
    assert [await _numbers(tasks[place]) for place in (0, 1, 3)] == [[0], [1], [3]]
    assert senders.watch.parted == 1


@pytest.mark.parametrize(
    "failure",
    [
        RequestError("UNAVAILABLE", "the queue is full; retry after 5 ms"),
        RequestError("INTERNAL", "Stub process 'rose_0_0' is not healthy."),
        RequestError("NOT_FOUND", "Request for unknown model: 'embed' is not found"),
    ],
)
async def test_what_is_nobodys_fault_is_everybodys_failure(failure: RequestError) -> None:
    senders = _Senders()
    tasks = [await senders.send(number) for number in range(3)]
    senders.client.calls[0].end()
    await _settle()
    senders.client.calls[1].end(failure)
    for task in tasks[1:]:
        with pytest.raises(RequestError) as raised:
            await task
        assert (raised.value.status, raised.value.message) == (failure.status, failure.message)
    assert len(senders.client.calls) == 2
    assert senders.watch.parted == 0


async def test_a_fault_of_ours_leaves_nobody_waiting() -> None:
    senders = _Senders()
    tasks = [await senders.send(number) for number in range(3)]
    senders.client.calls[0].end()
    await _settle()
    senders.client.calls[1].end(KeyError("float"))
    for task in tasks[1:]:
        with pytest.raises(KeyError):
            await task


async def test_each_has_its_own_deadline() -> None:
    senders = _Senders(MergePolicy(calls_per_server=1, longest_wait=30.0), timeout=0.6)
    await senders.send(0)
    early = await senders.send(1)
    await asyncio.sleep(0.3)
    late_from = time.monotonic()
    late = await senders.send(2)
    await asyncio.sleep(0)
    senders.client.calls[0].end()
    await _settle()
    [_, merged] = senders.client.calls
    assert merged.items == [b"1", b"2"]
    assert merged.began is not None
    assert merged.began >= late_from  # the call has as long as the latest of them
    with pytest.raises(RequestError, match=r"DEADLINE_EXCEEDED: 0 of 1 texts were answered in the 0\.6 s"):
        await early
    if not late.done():  # on a machine that is not too busy
        merged.end()
        assert await _numbers(late) == [2]


async def test_the_last_deadline_ends_the_call() -> None:
    senders = _Senders(timeout=0.2)
    tasks = [await senders.send(number) for number in range(3)]
    senders.client.calls[0].end()
    for task in tasks[1:]:
        with pytest.raises(RequestError, match="DEADLINE_EXCEEDED"):
            await task
    await _settle()
    assert senders.client.cancelled == [senders.client.calls[1]]


async def test_who_leaves_leaves_alone() -> None:
    senders = _Senders()
    tasks = [await senders.send(number) for number in range(4)]
    tasks[3].cancel()  # while it waits
    await _settle()
    senders.client.calls[0].end()
    await _settle()
    assert _texts(senders.client)[1:] == [[b"1", b"2"]]
    tasks[1].cancel()  # while it travels
    await _settle()
    assert senders.client.cancelled == []
    senders.client.calls[1].end()
    assert await _numbers(tasks[2]) == [2]


async def test_when_all_have_left_the_call_is_cancelled() -> None:
    senders = _Senders()
    tasks = [await senders.send(number) for number in range(4)]
    senders.client.calls[0].end()
    await _settle()
    for task in tasks[1:]:
        task.cancel()
    await _settle()
    assert senders.client.cancelled == [senders.client.calls[1]]
    again = await senders.send(9)  # and the next leaves at once
    senders.client.calls[2].end()
    assert await _numbers(again) == [9]


async def test_nothing_is_kept_of_options_that_nobody_asks_for_any_more() -> None:
    senders = _Senders()
    for number in range(20):
        tasks = [await senders.send(place, prompt=str(number)) for place in range(3)]
        senders.client.calls[-1].end()
        await _settle()
        senders.client.calls[-1].end()
        await asyncio.gather(*tasks)
        await _settle()
    assert senders.merger._queues == {}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"calls_per_server": 0}, "calls_per_server is 0"),
        ({"longest_wait": 0.0}, "longest_wait is 0"),
        ({"max_request_texts": 33}, "max_request_texts is 33"),
        ({"max_request_texts": 8, "max_texts": 4}, "max_request_texts is 8"),
        ({"max_tokens": 100}, "max_request_tokens is 512"),
    ],
)
def test_policies_that_cannot_be_meant(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MergePolicy(**values)


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with fake_triton() as fake:
        yield fake


class _Gate:
    """Holds a server's first call until `open`, so that others wait."""

    def __init__(self) -> None:
        self.came, self.open = threading.Event(), threading.Event()

    def infer(self, call: Call) -> Any:
        texts = call.inputs["TEXT"]
        if texts == [b"hold"]:
            self.came.set()
            self.open.wait(30)
        if b"bad" in texts:
            raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, f"TEXT element {list(texts).index(b'bad')} is bad")
        return embeddings(call)


def test_one_bad_request_among_many_fails_alone(fake: FakeTriton) -> None:
    gate = _Gate()
    fake.infer = gate.infer
    texts = [*"abcdefgh", "bad", *"ijklmnop"]
    with running_gateway(fake.url, merging=_PATIENT) as gateway, ThreadPoolExecutor(32) as pool:
        held = pool.submit(gateway.post, "/v1/embeddings", json={"input": "hold"})
        assert gate.came.wait(30)
        answers = [pool.submit(gateway.post, "/v1/embeddings", json={"input": text}) for text in texts]
        wait_until(lambda: "running_requests 19" in gateway.get("/metrics").text, "all have come", 30)
        gate.open.set()
        assert held.result().status_code == 200
        for text, future in zip(texts, answers, strict=True):
            answer = future.result()
            if text == "bad":
                assert answer.status_code == 400
                assert answer.json()["error"]["message"] == "input[0] is bad"
            else:
                assert answer.json()["data"][0]["embedding"].index(1) == ord(text) % 8
                assert answer.json()["usage"] == {"prompt_tokens": 1, "total_tokens": 1}
        page = gateway.get("/metrics").text
    merged = [call for call in fake.calls if len(call.inputs["TEXT"]) > 1]
    assert merged
    assert all(call.parameters["lane"] == "online" for call in merged)
    assert all("lane" not in call.parameters for call in fake.calls if len(call.inputs["TEXT"]) == 1)
    assert "rose_gateway_calls_parted_total 1.0" in page
    assert "rose_gateway_requests_per_call_sum 18.0" in page


def test_a_sender_that_leaves_leaves_the_others(fake: FakeTriton) -> None:
    gate = _Gate()
    fake.infer = gate.infer
    with running_gateway(fake.url, merging=_PATIENT) as gateway, ThreadPoolExecutor(4) as pool:
        held = pool.submit(gateway.post, "/v1/embeddings", json={"input": "hold"})
        assert gate.came.wait(30)
        body = json.dumps({"input": "leaves"}).encode()
        with socket.create_connection((gateway.base_url.host, gateway.base_url.port)) as connection:
            head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            stays = pool.submit(gateway.post, "/v1/embeddings", json={"input": "stays"})
            wait_until(lambda: "running_requests 4" in gateway.get("/metrics").text, "both have come", 30)
        wait_until(lambda: 'status="499"' in gateway.get("/metrics").text, "one has left", 30)
        gate.open.set()
        assert held.result().status_code == 200
        assert stays.result().status_code == 200
    assert not any(b"leaves" in call.inputs["TEXT"] for call in fake.calls)


def test_switched_off(fake: FakeTriton) -> None:
    with running_gateway(fake.url, merging=None) as gateway, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda text: gateway.post("/v1/embeddings", json={"input": text}), "abcdefghijklmnop"))
        assert "rose_gateway_requests_per_call_count 0.0" in gateway.get("/metrics").text
    assert [len(call.inputs["TEXT"]) for call in fake.calls] == [1] * 16
