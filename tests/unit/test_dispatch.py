"""A call from texts to vectors with made-up servers on a made-up clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from rose_client import ChunkLimits, Embeddings, RequestError, RetryPolicy
from rose_client.dispatch import Attempt, Dispatcher
from rose_client.wire import join_embeddings

_BUSY = RequestError("UNAVAILABLE", "the queue is full")
_REFUSED = RequestError("UNAVAILABLE", "failed to connect to all addresses")
_DEAD_STUB = RequestError("INTERNAL", "Stub process 'rose_0_0' is not healthy.")
_WRONG = RequestError("INVALID_ARGUMENT", "in ensemble 'embed', TEXT element 1 has 300 tokens: the limit is 256")

Outcome = Embeddings | RequestError
Server = Callable[[Attempt, float], tuple[float, Outcome]]
"""Takes an attempt and the time; gives the seconds it takes and what comes out."""


def _dispatcher(
    num_servers: int = 1, *, timeout: float = 60.0, max_texts: int = 2, in_flight: int = 4, absent_tries: int = 7
) -> Dispatcher:
    retries = RetryPolicy(first_wait=0.05, longest_wait=2.0, jitter=0.0, absent_tries=absent_tries, avoidance=1.0)
    return Dispatcher(num_servers, timeout, ChunkLimits(max_texts=max_texts), in_flight, retries)


def _texts(count: int) -> list[bytes]:
    """Numbers of 4 digits: 3 tokens each."""
    return [f"{number:04}".encode() for number in range(count)]


def _answer(attempt: Attempt) -> Embeddings:
    """One-dimensional vectors that hold the numbers the texts are."""
    numbers = [int(text) for text in attempt.chunk.texts]
    return Embeddings({"float": np.array(numbers, np.float32)[:, None]}, np.array(numbers, np.int32))


def _takes(seconds: float) -> Server:
    return lambda attempt, now: (seconds, _answer(attempt))


def _fails(error: RequestError, seconds: float = 0.0) -> Server:
    return lambda attempt, now: (seconds, error)


@dataclass
class _Run:
    """Drives calls as the clients do. `sent` holds (time, server, first text) of every attempt."""

    dispatcher: Dispatcher
    servers: list[Server]
    now: float = 1000.0
    most_in_flight: int = 0
    sent: list[tuple[float, int, int]] = field(default_factory=list)

    def embed(self, texts: list[bytes]) -> Embeddings:
        began = self.now
        call = self.dispatcher.call(texts, began)
        ends: list[tuple[float, int, Attempt, Outcome]] = []
        order = itertools.count()
        try:
            while not call.is_finished:
                for attempt in call.ready(self.now):
                    self.sent.append((round(self.now - began, 6), attempt.server, attempt.chunk.first))
                    seconds, outcome = self.servers[attempt.server](attempt, self.now - began)
                    heapq.heappush(ends, (self.now + seconds, next(order), attempt, outcome))
                self.most_in_flight = max(self.most_in_flight, len(ends))
                wake = self.now + call.pause(self.now)
                if ends and ends[0][0] <= wake:
                    self.now, _, attempt, outcome = heapq.heappop(ends)
                    call.settle(attempt, outcome, self.now)
                else:
                    self.now = wake
        finally:
            call.close()
        return join_embeddings(call.answers())

    def servers_used(self) -> list[int]:
        return [server for _, server, _ in self.sent]


def _numbers(answer: Embeddings) -> list[int]:
    assert answer.token_counts.tolist() == answer.vectors[:, 0].tolist()
    return [int(number) for number in answer.token_counts]


def test_what_fits_one_chunk_is_one_request() -> None:
    dispatcher = _dispatcher(max_texts=3)
    assert dispatcher.call(_texts(3), 0).is_single
    assert not dispatcher.call(_texts(4), 0).is_single
    run = _Run(dispatcher, [_takes(1)])
    assert _numbers(run.embed(_texts(3))) == [0, 1, 2]
    assert run.sent == [(0, 0, 0)]


def test_vectors_come_back_in_the_order_of_the_texts() -> None:
    # The later its number the earlier a chunk is answered.
    run = _Run(_dispatcher(in_flight=9), [lambda attempt, now: (10 - attempt.index, _answer(attempt))])
    assert _numbers(run.embed(_texts(17))) == list(range(17))


def test_a_server_holds_a_bounded_number_of_chunks() -> None:
    run = _Run(_dispatcher(in_flight=3), [_takes(1)])
    run.embed(_texts(14))
    assert [time for time, _, _ in run.sent] == [0, 0, 0, 1, 1, 1, 2]
    assert run.most_in_flight == 3


def test_the_quicker_server_gets_more() -> None:
    # 14 chunks: one sets out for the slow server at 0, 3.5 and 7 s, one for the quick one at 0, 1, ... 10 s.
    run = _Run(_dispatcher(2, in_flight=1), [_takes(1), _takes(3.5)])
    assert _numbers(run.embed(_texts(28))) == list(range(28))
    assert run.servers_used().count(0) == 11
    assert run.servers_used().count(1) == 3


def test_calls_of_one_client_see_each_others_work() -> None:
    dispatcher = _dispatcher(2)
    first = dispatcher.call(_texts(2), 0)
    second = dispatcher.call(_texts(1), 0)
    third = dispatcher.call(_texts(1), 0)
    # 6 tokens at server 0, then 3 at server 1, where the third call's chunk goes, too.
    assert [call.ready(0)[0].server for call in (first, second, third)] == [0, 1, 1]
    for call in (second, third):
        call.close()
    assert dispatcher.call(_texts(1), 0).ready(0)[0].server == 1


def test_a_busy_server_is_asked_again_until_it_answers() -> None:
    def server(attempt: Attempt, now: float) -> tuple[float, Outcome]:
        return 0, _answer(attempt) if now > 1 else _BUSY

    run = _Run(_dispatcher(), [server])
    assert _numbers(run.embed(_texts(1))) == [0]
    assert [time for time, _, _ in run.sent] == [0, 0.05, 0.15, 0.35, 0.75, 1.55]


def test_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:
    run = _Run(_dispatcher(timeout=1.0), [_fails(_BUSY)])
    with pytest.raises(RequestError) as failed:
        run.embed(_texts(1))
    assert failed.value is _BUSY  # one request: the server's own words
    assert run.now == pytest.approx(1000.75)


def test_a_hint_is_waited_for() -> None:
    hint = RequestError("UNAVAILABLE", "the queue is full: retry after 400 ms")
    run = _Run(_dispatcher(), [lambda attempt, now: (0, _answer(attempt) if now else hint)])
    run.embed(_texts(1))
    assert [time for time, _, _ in run.sent] == [0, 0.45]


def test_chunks_of_an_unreachable_server_go_elsewhere_and_the_rest_with_them() -> None:
    run = _Run(_dispatcher(2, in_flight=1), [_fails(_REFUSED), _takes(0.1)])
    assert _numbers(run.embed(_texts(12))) == list(range(12))
    assert run.servers_used() == [0, 1, 1, 1, 1, 1, 1]


def test_a_chunk_goes_elsewhere_though_the_server_it_failed_on_has_less_to_do() -> None:
    dispatcher = _dispatcher(2)
    assert dispatcher.call(_texts(2), 0).ready(0)[0].server == 0  # another call, which stays there
    run = _Run(dispatcher, [_takes(1), _fails(_BUSY)])
    run.embed(_texts(1))
    assert run.servers_used() == [1, 0]


def test_an_unreachable_server_is_tried_again_later() -> None:
    def back_after_a_while(attempt: Attempt, now: float) -> tuple[float, Outcome]:
        return (0.1, _answer(attempt)) if now > 1.5 else (0, _REFUSED)

    run = _Run(_dispatcher(2, in_flight=1), [back_after_a_while, _takes(1)])
    assert _numbers(run.embed(_texts(20))) == list(range(20))
    at_the_first = [time for time, server, _ in run.sent if server == 0]
    # Refused at 0 and at 1, found back at 2, and from then on the quicker one.
    assert at_the_first[:3] == [0, 1, 2]
    assert len(at_the_first) > 5


def test_a_server_is_found_back_while_the_other_is_stuck() -> None:
    def back_at_once(attempt: Attempt, now: float) -> tuple[float, Outcome]:
        return 0.1, _answer(attempt) if now else _REFUSED

    run = _Run(_dispatcher(2, in_flight=1), [back_at_once, _takes(50)])
    assert _numbers(run.embed(_texts(6))) == list(range(6))
    assert run.servers_used() == [0, 1, 0, 0]
    assert 1 <= run.sent[2][0] <= 2.5  # a second of avoidance, and at most another until that is noticed


def test_a_chunk_outlives_an_absent_server_while_the_other_is_full() -> None:
    run = _Run(_dispatcher(2, in_flight=1, absent_tries=3), [_fails(_REFUSED), _takes(20)])
    assert _numbers(run.embed(_texts(4))) == [0, 1, 2, 3]
    assert run.servers_used().count(0) > 3
    assert run.servers_used().count(1) == 2


def test_nobody_anywhere_is_an_answer_too() -> None:
    run = _Run(_dispatcher(2, absent_tries=3), [_fails(_REFUSED), _fails(_REFUSED)])
    with pytest.raises(RequestError, match="failed to connect"):
        run.embed(_texts(1))
    assert run.sent == [(0, 0, 0), (0.05, 1, 0), (0.15, 0, 0)]


def test_a_dead_stub_is_escaped_once() -> None:
    run = _Run(_dispatcher(2), [_fails(_DEAD_STUB), _takes(1)])
    assert _numbers(run.embed(_texts(1))) == [0]
    assert run.servers_used() == [0, 1]
    lone = _Run(_dispatcher(), [_fails(_DEAD_STUB)])
    with pytest.raises(RequestError, match="not healthy"):
        lone.embed(_texts(1))
    assert lone.servers_used() == [0, 0]


def test_a_refusal_ends_the_call_and_names_the_texts() -> None:
    dispatcher = _dispatcher(2, max_texts=10, in_flight=1)

    def server(attempt: Attempt, now: float) -> tuple[float, Outcome]:
        return 1 + attempt.index, _WRONG if attempt.index == 2 else _answer(attempt)

    run = _Run(dispatcher, [server, server])
    with pytest.raises(RequestError) as failed:
        run.embed(_texts(95))
    assert failed.value.status == "INVALID_ARGUMENT"
    assert failed.value.message == (
        "texts 20 to 29: in ensemble 'embed', TEXT element 21 has 300 tokens: the limit is 256"
    )
    assert [first for _, _, first in run.sent] == [0, 10, 20, 30]
    # What was still running does not count as outstanding: both servers are idle, and take turns.
    assert sorted(dispatcher.call(_texts(1), 0).ready(0)[0].server for _ in range(2)) == [0, 1]


def test_every_attempt_carries_what_is_left_of_the_call() -> None:
    left: list[float] = []

    def server(attempt: Attempt, now: float) -> tuple[float, Outcome]:
        left.append(attempt.seconds)
        return 2, _answer(attempt)

    _Run(_dispatcher(timeout=10, in_flight=1), [server]).embed(_texts(6))
    assert left == [10, 8, 6]


def test_a_call_ends_with_its_time() -> None:
    run = _Run(_dispatcher(timeout=5, in_flight=1), [_takes(2)])
    with pytest.raises(RequestError, match="4 of 8 texts were answered in the 5 s") as failed:
        run.embed(_texts(8))
    assert failed.value.status == "DEADLINE_EXCEEDED"
    assert run.now == pytest.approx(1005)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_servers": 0}, "urls is empty"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"in_flight": 0}, "max_in_flight is 0"),
    ],
)
def test_settings_that_serve_nobody(changes: dict[str, float], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        _dispatcher(**changes)  # type: ignore[arg-type]
