"""SIGTERM ends a command wherever it arrives."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from rose_client.cli.console import sigterm_unwinds


class Watched:
    """Can be referred to weakly."""


class SignalsAsItGoes:
    """Is told to end while it is being freed, where Python drops whatever is raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def free_watched() -> None:
    """As importing does: a callback of a weak reference, and the signal comes while it runs."""
    watched = Watched()
    reference = weakref.ref(watched, lambda _: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.01)))
    del watched
    assert reference() is None


def free_destructor() -> None:
    made = SignalsAsItGoes()
    del made


def at_once() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def command(moment: Callable[[], None], cleaned: list[str]) -> None:
    with sigterm_unwinds():
        try:
            moment()
            time.sleep(30)
        finally:
            cleaned.append("what was started")


@pytest.mark.parametrize("moment", [at_once, free_watched, free_destructor])
def test_sigterm_unwinds_the_stack(moment: Callable[[], None]) -> None:
    cleaned: list[str] = []
    began = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        command(moment, cleaned)
    assert ended.value.code == 128 + signal.SIGTERM
    assert cleaned == ["what was started"]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("fault", [ValueError("of its own"), SystemExit("of its own")])
def test_what_others_drop_is_still_reported(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: dropped.append(str(unraisable.exc_value)))

    class Faulty:
        def __del__(self) -> None:
            raise fault

    with sigterm_unwinds():
        made = Faulty()
        del made
    assert dropped == ["of its own"]


@pytest.fixture
def hangup() -> Iterator[None]:
    """Not ignored, as it is where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_a_hangup_unwinds_too() -> None:
    cleaned = list[str]()
    with pytest.raises(SystemExit) as ended:
        command(lambda: os.kill(os.getpid(), signal.SIGHUP), cleaned)
    assert cleaned == ["what was started"]
    assert ended.value.code == 128 + signal.SIGHUP


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize(
    ("first", "raised"),
    [(signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit), (signal.SIGINT, KeyboardInterrupt)],
)
def test_another_signal_does_not_interrupt_the_unwinding(
    first: signal.Signals, raised: type[BaseException], second: signal.Signals
) -> None:
    cleaned = list[str]()

    def clean_up() -> None:
        os.kill(os.getpid(), second)
        time.sleep(0.01)
        cleaned.append("all of it")

    def fail() -> None:
        with sigterm_unwinds(), ExitStack() as started:
            started.callback(clean_up)
            os.kill(os.getpid(), first)
            time.sleep(30)

    before = signal.getsignal(second)
    with pytest.raises(raised) as ended:
        fail()
    assert getattr(ended.value, "code", None) == (128 + first if raised is SystemExit else None)
    assert cleaned == ["all of it"]
    assert signal.getsignal(second) is before
