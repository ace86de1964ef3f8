"""Signals that ask a command to end, and when they are acted upon."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_AGAIN_SECONDS = 0.5  # what starts commands may pass a signal on that the terminal has sent to all

Handler = Callable[[int, FrameType | None], None]


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT and SIGHUP, but for those that are ignored, as `nohup` and shells in the background have it."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Have `stop_signals` handled by it; in a thread but the main one nothing is changed, since none can be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def held_signals() -> Iterator[None]:
    """Put signals off until the end of the block: what they raise while a process starts would lose it."""
    held: list[int] = []
    try:
        with handled(lambda signum, _frame: held.append(signum)):
            yield
    finally:
        for number in held:
            signal.raise_signal(number)


class StopSignals:
    """Notes the signals that come in its block.

    Its handler does nothing else: it may interrupt what holds the very lock that more would need.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._block = handled(lambda _signum, _frame: self._times.append(time.monotonic()))

    @property
    def came(self) -> bool:
        """Whether there was one."""
        return bool(self._times)

    @property
    def came_again(self) -> bool:
        """Whether there was one more, later: whoever sends it does not want to wait."""
        return len(self._times) > 1 and self._times[-1] - self._times[0] > _AGAIN_SECONDS

    def __enter__(self) -> StopSignals:
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)
