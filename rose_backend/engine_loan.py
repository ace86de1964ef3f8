"""Who has the engine: its own thread, or whoever brings a small batch while that has nothing to do, and launches it."""

from __future__ import annotations

import threading

from rose_backend.lanes import Depth

_IN_A_ROW = 100  # batches, before the engine passes between threads with teams: that costs a millisecond
_MOST_TOKENS = 128  # of a batch that whoever brought it may launch: it cannot bring more until that is done


class EngineLoan:
    """The engine as something that its own thread lends. To be used while holding the service's lock.

    Args:
        lock: the service's.

    Attributes:
        in_use: whether the engine's own thread has a batch, or uses the engine for anything else.
        out: whether another thread has the engine.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.in_use = False
        self.out = False
        self._was_out = False
        self._in_a_row = _IN_A_ROW
        self._returned = threading.Condition(lock)

    def may_be_had(self, waiting: Depth, num_under_way: int, *, has_teams: bool) -> bool:
        """Whether who brought what waits may have the engine for it; asked once for each time something came.

        Args:
            waiting: in the queue.
            num_under_way: batches that were launched and are not done.
            has_teams: whether threads that step have threads of their own for it.
        """
        if num_under_way or waiting.tokens > _MOST_TOKENS:
            self._in_a_row = 0
            return False
        if not waiting.requests or self.in_use or self.out:
            return False
        self._in_a_row += 1
        return not has_teams or self._in_a_row >= _IN_A_ROW

    def give(self) -> None:
        """Another thread has the engine now."""
        self.out = True

    def take_back(self) -> None:
        """It has it no longer."""
        self.out, self._was_out = False, True
        self._returned.notify()

    def wait_until_returned(self) -> None:
        """Return at once if no other thread has it. Lets go of the lock meanwhile: everything else may have changed."""
        while self.out:
            self._returned.wait()

    def clear_was_out(self) -> bool:
        """Forget that another thread had the engine; whether one had since this was last called."""
        was_out, self._was_out = self._was_out, False
        return was_out
