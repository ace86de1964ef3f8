"""Signals that are held back, and those that are only noted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from rose_ensemble import signals
from rose_ensemble.signals import StopSignals, held_signals, stop_signals


@pytest.fixture
def got() -> Iterator[list[int]]:
    """Signals that came to whoever handled them before."""
    found = list[int]()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # also where the tests were started to ignore one
    previous = [signal.signal(number, lambda signum, _frame: found.append(signum)) for number in numbers]
    yield found
    for number, handler in zip(numbers, previous, strict=True):
        signal.signal(number, handler)


def _send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_held_until_the_end_of_the_block(got: list[int], number: signal.Signals) -> None:
    with held_signals():
        _send(number)
        assert got == []
    assert got == [number]


def test_the_outermost_block_counts(got: list[int]) -> None:
    with held_signals():
        with held_signals():
            _send(signal.SIGTERM)
        assert got == []
    assert got == [signal.SIGTERM]


def test_a_signal_is_not_lost_with_a_failure(got: list[int]) -> None:
    @held_signals()
    def fail() -> None:
        _send(signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert got == [signal.SIGTERM]


def test_signals_are_noted_and_not_handed_on(got: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_AGAIN_SECONDS", 0.2)
    with StopSignals() as noted:
        assert not noted.came
        for _ in range(3):  # of one hand
            _send(signal.SIGINT)
        assert noted.came
        assert not noted.came_again
        time.sleep(0.3)
        _send(signal.SIGTERM)
        assert noted.came_again
    assert got == []
    _send(signal.SIGTERM)
    assert got == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(got: list[int], number: signal.Signals) -> None:
    assert number in stop_signals()
    signal.signal(number, signal.SIG_IGN)
    assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} - {number}
    with StopSignals() as noted:
        _send(number)
        assert not noted.came
    assert got == []


def test_another_thread_changes_nothing(got: list[int]) -> None:
    def use() -> None:
        with held_signals(), StopSignals() as noted:
            _send(signal.SIGTERM)
            came.append(noted.came)

    came = list[bool]()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert came == [False]
    assert got == [signal.SIGTERM]
