"""What is tried again, and after how long. The messages are those of Triton 24.10 and gRPC 1.85."""

from __future__ import annotations

import pytest

from rose_client import RequestError, RetryPolicy

_REFUSED = RequestError(
    "UNAVAILABLE",
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:38377: Failed to connect to remote "
    "host: Connection refused",
)
_CUT = RequestError("UNAVAILABLE", "Stream removed (Socket closed)")
_STOPPING = RequestError(
    "UNAVAILABLE",
    "in ensemble 'embed', [request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting "
    "new inference requests",
)
_UNLOADED = RequestError("NOT_FOUND", "Request for unknown model: 'embed' has no available versions")
_DEAD_STUB = RequestError("INTERNAL", "in ensemble 'embed', Stub process 'tokenize_0_0' is not healthy.")
_EXACT = RetryPolicy(first_wait=0.05, longest_wait=2.0, jitter=0.0, absent_tries=3, avoidance=1.0)


def _wait(failures: list[RequestError], *, is_anyone_there: bool = False) -> float | None:
    return _EXACT.wait(failures, is_anyone_there=is_anyone_there)


def test_waits_double_up_to_the_longest() -> None:
    waits = [_wait([_STOPPING] * failures) for failures in range(1, 9)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert _wait([_CUT] * 5000) == 2.0


def test_part_of_a_wait_is_left_to_chance() -> None:
    waits = {RetryPolicy(first_wait=1.0, jitter=0.5).wait([_STOPPING], is_anyone_there=True) for _ in range(50)}
    assert len(waits) > 1
    assert all(wait is not None and 0.5 <= wait <= 1.0 for wait in waits)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("the queue is full, retry after 250 ms", 0.25),
        ("in ensemble 'embed', busy: Retry in 1500ms", 1.5),
        ("retry after 0.5 ms", 0.0005),
        ("retry after 3 s", 0.0),
        ("retry after 3 msgs", 0.0),
        ("busy for 250 ms", 0.0),
    ],
)
def test_a_hint_comes_before_the_wait(words: str, seconds: float) -> None:
    assert _wait([RequestError("UNAVAILABLE", words)]) == pytest.approx(seconds + 0.05)


def test_an_absent_server_is_put_up_with_a_few_times() -> None:
    assert _wait([_REFUSED] * 2) == 0.1
    assert _wait([_REFUSED] * 3) is None
    assert _wait([_REFUSED] * 3, is_anyone_there=True) == 0.2
    assert _wait([_UNLOADED] * 2) == 0.1
    assert _wait([_REFUSED, _UNLOADED, _REFUSED]) is None
    assert _wait([_REFUSED, _CUT, _REFUSED, _CUT, _CUT]) == 0.8


def test_a_dead_stub_is_retried_once() -> None:
    assert _wait([_DEAD_STUB]) == 0.05
    assert _wait([_DEAD_STUB, _STOPPING]) == 0.1
    assert _wait([_DEAD_STUB, _DEAD_STUB]) is None
    assert _wait([_DEAD_STUB, _STOPPING, _DEAD_STUB]) is None


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("INVALID_ARGUMENT", "TEXT element 3 has 300 tokens: the limit is 256"),
        ("INTERNAL", "the step failed: out of memory"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
        ("NOT_FOUND", "Request for unknown model: 'nothing' is not found, retry after 5 ms"),
        ("RESOURCE_EXHAUSTED", "too large"),
        ("CANCELLED", "Locally cancelled by application!"),
        ("UNKNOWN", "Stub process 'rose_0_0' is not healthy."),
    ],
)
def test_anything_else_is_final(status: str, message: str) -> None:
    assert _wait([RequestError(status, message)]) is None


def test_a_server_that_is_down_is_left_alone_for_longer_than_a_busy_one() -> None:
    assert _EXACT.avoid_for(_REFUSED, 0.05) == 1.0
    assert _EXACT.avoid_for(_UNLOADED, 0.05) == 1.0
    assert _EXACT.avoid_for(_DEAD_STUB, 0.05) == 1.0
    assert _EXACT.avoid_for(_REFUSED, 1.6) == 1.6
    assert _EXACT.avoid_for(_STOPPING, 0.05) == 0.05


def test_a_refusal_may_end_a_call_of_one_chunk() -> None:
    policy = RetryPolicy(first_wait=0.05, jitter=0.0, busy_tries=2)
    assert policy.wait([_STOPPING], is_anyone_there=True) == 0.05
    assert policy.wait([_REFUSED, _STOPPING], is_anyone_there=True) == 0.1
    assert policy.wait([_STOPPING] * 2, is_anyone_there=True) is None
    assert policy.wait([_STOPPING] * 2, is_anyone_there=True, is_split=True) == 0.1
