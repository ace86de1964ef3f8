"""Handing answers to their senders without holding up the completer.

A reply can take as long as a small step: it is a message to another process and waits for its receipt. Several at
once overlap, so a batch's replies are spread over a few threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Answer = Callable[[], None]

_THREADS = 4


class Answerers:
    """A few threads that run answers. Each answer must look after its own failures."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "rose-answers")

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Run all of them soon, in any order, a slice to a thread."""
        per_thread = -(-len(answers) // _THREADS)
        for first in range(0, len(answers), max(1, per_thread)):
            self._pool.submit(_run, answers[first : first + per_thread])

    def close(self) -> None:
        """Return once all are run."""
        self._pool.shutdown(wait=True)


def _run(answers: Sequence[Answer]) -> None:
    for answer in answers:
        answer()
