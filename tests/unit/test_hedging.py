"""Slow chunks that go out a second time: with made-up servers on a made-up clock, and through the gateway."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from rose_client import ChunkLimits, RequestError, RetryPolicy
from rose_client.dispatch import Attempt, Dispatcher
from rose_client.dispatch import Call as DispatchedCall
from rose_client.hedging import HedgePolicy, Hedger
from tests.support.fake_triton import Call, FakeTriton, RefusalError, embeddings, fake_triton
from tests.support.gateways import running_gateway

_GONE = RequestError("UNAVAILABLE", "failed to connect to all addresses")
_TOKENS = 3  # of a text of four bytes


@dataclass
class _Watch:
    sent: int = 0
    won: int = 0

    def hedge_sent(self) -> None:
        self.sent += 1

    def hedge_won(self) -> None:
        self.won += 1


def _hedger(share: float = 0.5, percentile: float = 90.0, *, credit: int = 4) -> tuple[Hedger, _Watch]:
    """One that knows chunks of `_TOKENS` tokens to take 1, 2, ... 100 ms, and has sent enough for so many extras."""
    watch = _Watch()
    hedger = Hedger(HedgePolicy(share, percentile), watch)
    for milliseconds in range(1, 101):
        hedger.measured(_TOKENS, milliseconds / 1e3)
    for _ in range(math.ceil(credit / share)):
        hedger.sent()
    return hedger, watch


def _dispatcher(hedger: Hedger | None, num_servers: int = 2, **limits: int) -> Dispatcher:
    return Dispatcher(num_servers, 60.0, ChunkLimits(**limits), 4, RetryPolicy(jitter=0.0), hedger)


def _sent(attempts: list[Attempt]) -> list[tuple[int, int, bool]]:
    return [(attempt.index, attempt.server, attempt.is_extra) for attempt in attempts]


def test_what_is_slow_is_measured_by_size() -> None:
    hedger, _ = _hedger()
    assert 0.08 <= hedger.delay(_TOKENS) <= 0.1
    assert hedger.delay(100 * _TOKENS) == math.inf


def test_a_few_times_say_nothing() -> None:
    hedger = Hedger(HedgePolicy(), _Watch())
    for _ in range(31):
        hedger.measured(_TOKENS, 0.01)
    assert hedger.delay(_TOKENS) == math.inf
    hedger.measured(_TOKENS, 0.01)
    assert hedger.delay(_TOKENS) == pytest.approx(0.01)


def test_a_slow_chunk_goes_to_the_other_server_and_the_first_answer_counts() -> None:
    hedger, watch = _hedger()
    call: DispatchedCall[str] = _dispatcher(hedger).call([b"0000"], 0.0)
    [first] = call.ready(0.0)
    assert call.pause(0.0) == pytest.approx(hedger.delay(_TOKENS))
    assert call.ready(0.05) == []
    [extra] = call.ready(0.11)
    assert _sent([first, extra]) == [(0, 0, False), (0, 1, True)]
    assert call.ready(5.0) == []  # once
    call.settle(extra, "second", 5.0)
    assert call.losers(5.0) == [first]
    assert (call.is_finished, call.answers()) == (True, ["second"])
    assert (watch.sent, watch.won) == (1, 1)


def test_the_slow_one_may_still_be_first() -> None:
    hedger, watch = _hedger()
    dispatcher = _dispatcher(hedger)
    call: DispatchedCall[str] = dispatcher.call([b"0000"], 0.0)
    [first] = call.ready(0.0)
    [extra] = call.ready(0.2)
    call.settle(first, "first", 0.3)
    assert call.losers(0.3) == [extra]
    assert (call.answers(), watch.sent, watch.won) == (["first"], 1, 0)
    [again] = dispatcher.call([b"0000"], 1.0).ready(1.0)  # nothing counts as outstanding any more
    assert dispatcher.balancer.take(1, 1.0) != again.server


def test_one_of_the_two_may_fail() -> None:
    for order in ([0, 1], [1, 0]):
        hedger, _ = _hedger()
        call: DispatchedCall[str] = _dispatcher(hedger).call([b"0000"], 0.0)
        pair = [*call.ready(0.0), *call.ready(0.2)]
        call.settle(pair[order[0]], _GONE, 0.3)
        assert not call.is_finished
        call.settle(pair[order[1]], "answer", 0.4)
        assert call.answers() == ["answer"]


def test_both_may_fail_and_the_chunk_is_sent_anew() -> None:
    hedger, _ = _hedger()
    call: DispatchedCall[str] = _dispatcher(hedger).call([b"0000"], 0.0)
    for attempt in (*call.ready(0.0), *call.ready(0.2)):
        call.settle(attempt, _GONE, 0.3)
    [anew] = call.ready(10.0)
    assert not anew.is_extra
    call.settle(anew, "answer", 10.1)
    assert call.is_finished


def test_the_budget_holds() -> None:
    hedger, watch = _hedger(share=0.1, credit=0)
    dispatcher = _dispatcher(hedger)
    for number in range(200):  # all of them slow
        now = float(number)
        call: DispatchedCall[int] = dispatcher.call([b"0000"], now)
        [first] = call.ready(now)
        extras = call.ready(now + 0.5)
        call.settle(first, number, now + 0.6)
        assert set(extras) == set(call.losers(now + 0.6))
        assert watch.sent <= (number + 1) * 0.1 + 1e-9
    # What is given up has shown how slow it was at least, and what is slow for all is slow no more.
    assert hedger.delay(_TOKENS) > 0.1


def test_without_credit_nobody_spins() -> None:
    hedger, _ = _hedger(credit=0, share=0.01)
    call: DispatchedCall[str] = _dispatcher(hedger).call([b"0000"], 0.0)
    call.ready(0.0)
    assert call.ready(0.2) == []
    assert call.pause(0.2) == pytest.approx(hedger.delay(_TOKENS))


def test_on_one_server_it_is_another_engine_that_may_be_quicker() -> None:
    hedger, _ = _hedger()
    call: DispatchedCall[str] = _dispatcher(hedger, 1).call([b"0000"], 0.0)
    assert _sent([*call.ready(0.0), *call.ready(0.2)]) == [(0, 0, False), (0, 0, True)]


def test_chunks_of_a_call_are_hedged_each() -> None:
    hedger, watch = _hedger(share=1.0)
    call: DispatchedCall[int] = _dispatcher(hedger, max_texts=1).call([b"0000", b"0001", b"0002"], 0.0)
    firsts = call.ready(0.0)
    call.settle(firsts[1], 1, 0.01)
    extras = call.ready(0.2)
    assert sorted(attempt.index for attempt in extras) == [0, 2]
    assert all(extra.server != firsts[extra.index].server for extra in extras)
    for extra in extras:
        call.settle(extra, extra.index, 0.3)
    assert len(call.losers(0.3)) == 2
    assert (call.answers(), watch.won) == ([0, 1, 2], 2)


@pytest.mark.parametrize(("field", "value"), [("share", 0.0), ("share", 1.5), ("percentile", 0.0), ("percentile", 100)])
def test_policies_that_mean_nothing_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is"):
        HedgePolicy(**{field: value})


@pytest.fixture
def pair() -> Iterator[tuple[FakeTriton, FakeTriton]]:
    with fake_triton() as one, fake_triton() as other:
        yield one, other


def _count(gateway: httpx.Client, name: str) -> float:
    lines = gateway.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"rose_gateway_{name} "))


def _warm(gateway: httpx.Client) -> None:
    for _ in range(60):
        assert gateway.post("/v1/embeddings", json={"input": "tea"}).status_code == 200


def test_through_the_gateway(pair: tuple[FakeTriton, FakeTriton]) -> None:
    """A server that hangs is not waited for, and learns that nobody waits."""
    one, other = pair
    unwanted = threading.Event()

    def hang(call: Call) -> Any:
        if one.wait_until_unwanted(call):
            unwanted.set()
        return embeddings(call)

    with running_gateway(one.url, other.url, hedging=HedgePolicy(1.0, 99.0), timeout=25.0) as gateway:
        _warm(gateway)
        one.infer = hang
        won = _count(gateway, "hedges_won_total")
        while _count(gateway, "hedges_won_total") == won:  # a first try at the other may have been slow, and still won
            began = time.monotonic()
            answer = gateway.post("/v1/embeddings", json={"input": "tea"})
            assert answer.status_code == 200
            assert np.argmax(answer.json()["data"][0]["embedding"]) == ord("t") % 8
            assert time.monotonic() - began < 20  # the hanging one never answers
        assert unwanted.wait(10)
        assert _count(gateway, "hedges_total") >= 1


def test_a_server_of_one_engine_is_waited_for() -> None:
    """There is nowhere else to send a chunk, and nothing is hedged by default."""
    with fake_triton() as fake:

        def slow(call: Call) -> Any:
            time.sleep(0.3)
            return embeddings(call)

        for settings in ({"hedging": HedgePolicy(1.0, 50.0)}, {}):
            fake.infer = embeddings
            with running_gateway(fake.url, **settings) as gateway:
                _warm(gateway)
                fake.infer = slow
                fake.calls.clear()
                assert gateway.post("/v1/embeddings", json={"input": "tea"}).status_code == 200
                assert len(fake.calls) == 1
                assert _count(gateway, "hedges_total") == 0


def test_a_server_of_two_engines_is_asked_again() -> None:
    with fake_triton() as fake:
        fake.engines = 2
        slow_once = threading.Semaphore(1)

        def infer(call: Call) -> Any:
            if slow_once.acquire(blocking=False):
                fake.wait_until_unwanted(call)
            return embeddings(call)

        with running_gateway(fake.url, hedging=HedgePolicy(1.0, 99.0)) as gateway:
            _warm(gateway)
            fake.infer = infer
            assert gateway.post("/v1/embeddings", json={"input": "tea"}).status_code == 200
            assert _count(gateway, "hedges_won_total") >= 1


def test_a_refusal_is_still_told(pair: tuple[FakeTriton, FakeTriton]) -> None:
    def refuse(call: Call) -> Any:
        raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "in ensemble 'embed', TEXT element 0 is bad")

    for fake in pair:
        fake.infer = refuse
    with running_gateway(*(fake.url for fake in pair), hedging=HedgePolicy()) as gateway:
        answer = gateway.post("/v1/embeddings", json={"input": "tea"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "input[0] is bad")
