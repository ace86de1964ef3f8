"""The thread that large requests are tokenized on: one after another, and so many characters wait at most."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from rose_ensemble.large_requests import LargeRequests
from tests.support.waiting import wait_until


def _unexpected(cause: BaseException) -> None:
    raise AssertionError from cause


def test_jobs_are_done_in_their_order_and_to_the_last() -> None:
    large, done = LargeRequests(), list[int]()
    for number in range(100):
        large.put(1, partial(done.append, number), _unexpected)
    large.close()
    assert done == list(range(100))


def test_whoever_brings_too_much_waits_until_there_is_room() -> None:
    large, go, done = LargeRequests(most_waiting=10), [threading.Event() for _ in range(3)], list[int]()
    begun = list[int]()

    def job(number: int) -> None:
        begun.append(number)
        assert go[number].wait(30)
        done.append(number)

    large.put(1000, partial(job, 0), _unexpected)  # more than there is room for: it does not wait long
    wait_until(lambda: begun == [0], "the first is begun")
    large.put(6, partial(job, 1), _unexpected)
    put = threading.Event()

    def bring() -> None:
        large.put(5, partial(job, 2), _unexpected)
        put.set()

    bringing = threading.Thread(target=bring)
    bringing.start()
    assert not put.wait(0.2)
    go[0].set()  # the second is begun, and no longer waits
    assert put.wait(30)
    for event in go:
        event.set()
    large.close()
    bringing.join()
    assert done == [0, 1, 2]


@pytest.mark.parametrize("fault", [ZeroDivisionError, SystemExit])
def test_a_job_that_fails_is_told_and_the_next_is_done(
    fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    large, done, told = LargeRequests(), list[int](), list[BaseException]()

    def fails() -> None:
        raise fault

    large.put(1, fails, told.append)
    large.put(1, partial(done.append, 2), _unexpected)
    large.close()
    assert done == [2]
    assert [type(cause) for cause in told] == [fault]
    assert fault.__name__ in caplog.text


def test_who_cannot_be_told_does_not_keep_the_next_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    large, done = LargeRequests(), list[int]()
    large.put(1, lambda: 1 // 0, lambda _: {}["gone"])
    large.put(1, partial(done.append, 2), _unexpected)
    large.close()
    assert done == [2]
    assert "a request was not answered" in caplog.text
