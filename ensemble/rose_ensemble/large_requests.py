"""Requests of many texts, tokenized beside the others: whoever sends a line does not wait for thousands of texts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)

LARGE = 1 << 15
"""Characters of a request that is tokenized beside the others: half a dozen milliseconds' work of a core."""

_MOST_WAITING = 1 << 25  # characters: they are in memory twice by then, and what comes after them is not yet


class LargeRequests:
    """A thread that does one job after another, with a bound on what waits for it."""

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._waiting = 0
        self._room = threading.Condition()
        self._thread = ThreadPoolExecutor(1, "rose-large")

    def put(self, size: int, job: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Have a job done, once those before it are.

        Blocks while too much waits, so that Triton keeps what comes then.

        Args:
            size: characters; of any number, one job may wait.
            job: answers a request.
            failed: told what that raised, so that it is answered all the same.
        """
        with self._room:
            while self._waiting and self._waiting + size > self._most_waiting:
                self._room.wait()
            self._waiting += size
        self._thread.submit(self._do, size, job, failed)

    def close(self) -> None:
        """Do what is left; nothing more may come."""
        self._thread.shutdown()

    def _do(self, size: int, job: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        with self._room:
            self._waiting -= size
            self._room.notify()
        answered(job, failed)


def answered(job: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
    """Do what answers a request; raises nothing, since that would be an answer to others.

    Args:
        job: answers it.
        failed: told what that raised, so that it is answered all the same.
    """
    try:
        job()
    except BaseException as cause:  # a panic of the tokenizer's library is no `Exception`
        logger.exception("a request failed")
        try:
            failed(cause)
        except Exception:
            # Nobody is left to be told; others' requests go on.
            logger.exception("a request was not answered")
