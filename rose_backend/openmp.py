"""Giving back the threads that torch's loops run on: each thread that computes on a CPU has a team of its own."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable

_LIBRARY = "libgomp.so.1"  # what torch's wheels for Linux are linked with
_PAUSE_SOFT = 1  # omp_pause_soft, OpenMP 5.0, section 3.2.43


def threads_wait_awake() -> bool:
    """Whether threads look out for the next loop for a while; where they sleep at once, teams do not meet."""
    spins = os.environ.get("GOMP_SPINCOUNT")
    return os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive" if spins is None else spins != "0"


class Team:
    """Whether the calling thread has a team, and how to be rid of it.

    GNU's OpenMP lets threads wait for the next loop awake (`GOMP_SPINCOUNT`) only while all teams together have no more
    threads than there are cores: a second thread that computes would slow both down, also while the first does nothing.
    """

    def __init__(self) -> None:
        self._mine = threading.local()

    def use(self) -> None:
        """The calling thread is about to compute."""
        self._mine.has_one = True

    def give_back(self) -> None:
        """End the calling thread's team, if it has one: another thread computes. It gets a new one when it does."""
        if getattr(self._mine, "has_one", False):
            self._mine.has_one = False
            _pause()


def _pause() -> None:
    pause = _pause_function()
    if pause is not None:
        pause(_PAUSE_SOFT)


@functools.cache
def _pause_function() -> Callable[[int], int] | None:
    """GNU's `omp_pause_resource_all`; None where torch runs on another OpenMP, which needs no such care."""
    try:
        # Only if it is loaded: one more copy would know nothing of torch's threads.
        function: Callable[[int], int] = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD).omp_pause_resource_all
    except (OSError, AttributeError):
        return None
    return function
