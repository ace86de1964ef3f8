"""Answers that are there before `execute` returns go back with it.

A response sender's way is longer: the answer goes through three more threads, and its sender waits for a receipt.
"""

from __future__ import annotations

import threading
from typing import Any


class ReplyTray:
    """The answers of one call of `execute`, by the place of their request in it.

    Args:
        size: requests of the call.
    """

    def __init__(self, size: int) -> None:
        self._owner = threading.get_ident()
        self._responses: list[Any] = [None] * size
        self._open = True
        self._used = False

    def put(self, place: int, response: Any) -> bool:
        """Whether a response goes back with the call. If not, the call is over, or another thread's."""
        if not self._open or threading.get_ident() != self._owner:
            return False
        self._responses[place] = response
        self._used = True
        return True

    def take(self) -> list[Any] | None:
        """What `execute` returns: a response or None for each request, or None where there is none. Ends the call."""
        self._open = False
        return self._responses if self._used else None
