"""When a slow chunk is sent a second time, elsewhere, and the first answer taken.

As in Dean and Barroso, "The Tail at Scale" (CACM 2013): after the time that most take, and within a small budget.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_KEPT = 256  # latest times of a size
_NEEDED = 32  # times of a size before any percentile of them means something
_RENEWED_EVERY = 16  # times
_MOST_CREDIT = 10.0  # extra chunks that a quiet time may leave
_SHORTEST_DELAY = 0.001


@dataclass(frozen=True)
class HedgePolicy:
    """Which chunks are slow, and how many may go out a second time.

    Attributes:
        share: most extra chunks for each chunk, over 0 and up to 1.
        percentile: of the times that chunks about as large took lately; one that takes longer is slow.
    """

    share: float = 0.05
    percentile: float = 95.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}: give more than 0 and at most 1")
        if not 0 < self.percentile < 100:
            raise ValueError(f"percentile is {self.percentile}: give more than 0 and less than 100")


class HedgeWatch(Protocol):
    """Counts hedges."""

    def hedge_sent(self) -> None:
        """A slow chunk went out a second time."""

    def hedge_won(self) -> None:
        """The second one was answered first."""


class Hedger:
    """What the calls of one client have measured and may spend. Use from one event loop.

    Args:
        policy: which chunks, and how many.
        watch: told of every hedge.
    """

    def __init__(self, policy: HedgePolicy, watch: HedgeWatch) -> None:
        self._policy = policy
        self._watch = watch
        self._times: dict[int, _Times] = {}
        self._credit = 0.0

    def delay(self, tokens: int) -> float:
        """Seconds after which a chunk of so many tokens is slow; infinite while too little is known."""
        times = self._times.get(tokens.bit_length())
        return times.delay if times is not None else math.inf

    def sent(self) -> None:
        """A chunk went out for the first time, or again after a failure."""
        self._credit = min(_MOST_CREDIT, self._credit + self._policy.share)

    def measured(self, tokens: int, seconds: float) -> None:
        """What a chunk took, or, if it was given up for its second sending, how long it had been under way."""
        size = tokens.bit_length()  # chunks of a size differ by less than twice
        self._times.setdefault(size, _Times(self._policy.percentile)).add(seconds)

    @property
    def has_credit(self) -> bool:
        """One more may go out a second time."""
        return self._credit >= 1

    def spend(self) -> None:
        """It does."""
        self._credit -= 1
        self._watch.hedge_sent()

    def won(self) -> None:
        """It was answered first."""
        self._watch.hedge_won()


class _Times:
    """Of chunks of one size, the latest, with their percentile as of a few ago."""

    def __init__(self, percentile: float) -> None:
        self.delay = math.inf
        self._percentile = percentile
        self._latest: deque[float] = deque(maxlen=_KEPT)
        self._unseen = 0

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        self._unseen += 1
        if len(self._latest) >= _NEEDED and (self._unseen >= _RENEWED_EVERY or self.delay == math.inf):
            self._unseen = 0
            self.delay = max(_SHORTEST_DELAY, float(np.percentile(self._latest, self._percentile)))
