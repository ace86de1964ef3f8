"""Handing answers to their senders without holding up the completer.

A reply can take as long as a small step: it is a message to another process and waits for its receipt. Several at
once overlap, so a batch's replies are spread over a few threads.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import NamedTuple

from rose_backend.core import Request, Results
from rose_backend.errors import RoseError

logger = logging.getLogger(__name__)

_THREADS = 4


class Answer(NamedTuple):
    """How a request ends: with its vectors, or an error."""

    request: Request
    content: Results | RoseError

    def send(self) -> None:
        """Call the request's `reply`."""
        try:
            self.request.reply(self.content)
        except Exception:
            # The receiver is gone or broken; the others' answers must still go out.
            logger.exception("reply failed")


class Answerers:
    """A few threads that send answers. Not an executor: what that makes for every task costs as much as a send."""

    def __init__(self) -> None:
        self._slices: queue.SimpleQueue[Sequence[Answer] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"rose-answers-{n}") for n in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Send all of them soon, in any order, a slice to a thread."""
        per_thread = -(-len(answers) // _THREADS)
        for first in range(0, len(answers), max(1, per_thread)):
            self._slices.put(answers[first : first + per_thread])

    def close(self) -> None:
        """Return once all are sent."""
        for _ in self._threads:
            self._slices.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while self._send_slice():
            pass

    def _send_slice(self) -> bool:
        """Send the next slice and forget it: whoever waits for another must not keep this one's vectors meanwhile."""
        answers = self._slices.get()
        if answers is None:
            return False
        for answer in answers:
            answer.send()
        return True
