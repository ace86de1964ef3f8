"""When to launch the next batch: as late as keeps the device busy, so that whatever comes meanwhile can ride in it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

_LEAD_SECONDS = 0.7e-3  # packing, launching, and how late a thread may wake
_LEAD_SHARE = 0.05
_MEMORY = 0.2  # weight of the newest rate in the moving average
_SLOWEST_CLOCK = 1 + 2e-4  # the host's seconds in one of the device's, at most: what is noticed in time sets it right
_FORGETTING = 0.05  # by how much a shortest time grows with every batch that did not reach it


@dataclass(frozen=True)
class _Launched:
    at: float
    tokens: int
    stood_still: float = 0.0  # while others ran inside it


class Ended(NamedTuple):
    """A batch that is done.

    Attributes:
        at: when, as well as is known.
        seconds: how long the device had it.
        num_under_way: how many batches are not done.
        began: when the device got it; earlier than `at` by more than `seconds` where others ran inside it.
    """

    at: float
    seconds: float
    num_under_way: int
    began: float


@dataclass
class Pacer:
    """Learns how long batches take at least, by powers of two of their tokens. Times are `time.monotonic()` seconds.

    At least: a batch that was recorded, or whose end was noticed late, says nothing of the next. To launch early costs
    little; to wait for a batch that is long done leaves the device idle. For the same reason a wait should end when
    `finished` is called.

    Not thread-safe: the service locks around it.
    """

    _under_way: deque[_Launched] = field(default_factory=deque, init=False)
    _seconds_per_token: dict[int, float] = field(default_factory=dict, init=False)
    _free_since: float = field(default=0.0, init=False)
    tokens_per_second: float = field(default=0.0, init=False)
    """Of the batches that ran last."""

    def launched(self, tokens: int, now: float) -> None:
        """A batch is about to go to the device."""
        self._under_way.append(_Launched(now, tokens))

    def failed(self) -> None:
        """The batch named last never got to the device."""
        self._under_way.pop()

    def finished(self, now: float, since_last: float | None = None) -> Ended:
        """The first batch under way is done.

        Args:
            now: when that is noticed. Whoever waits for it may have to wait for the interpreter, too, or have the
                answers of the batch before to give out.
            since_last: seconds by the device's clock from the end of the batch before; None where it has none.
        """
        batch, ended = self._under_way.popleft(), now
        seconds = now - max(batch.at, self._free_since) - batch.stood_still
        if since_last is not None:
            seconds = min(since_last, now - batch.at)
            if batch.at < self._free_since:  # it began when that one ended
                ended = min(now, self._free_since + since_last * _SLOWEST_CLOCK)
        seconds = max(seconds, 1e-6)
        self._free_since = ended
        # The next batch has the device from now on: what it stood still before is none of its time.
        self._under_way = deque(replace(waiting, stood_still=0.0) for waiting in self._under_way)
        self._learn(batch.tokens, seconds)
        return Ended(ended, seconds, len(self._under_way), ended - seconds - batch.stood_still)

    def finished_inside(self, tokens: int, began: float, now: float) -> Ended:
        """A batch ran while the one launched last stood still, and is done; that one's own time is so much less."""
        seconds = max(now - began, 1e-6)
        self.stood_still(seconds)
        self._learn(tokens, seconds)
        return Ended(now, seconds, len(self._under_way), began)

    def stood_still(self, seconds: float) -> None:
        """The batch launched last had to wait so long, within its step, for something else."""
        outer = self._under_way[-1]
        self._under_way[-1] = replace(outer, stood_still=outer.stood_still + seconds)

    @property
    def num_under_way(self) -> int:
        """Batches launched and not finished."""
        return len(self._under_way)

    def hold(self, now: float) -> float:
        """Seconds to wait before the next launch, unless a batch finishes first; 0: launch now."""
        if not self._under_way:
            return 0.0
        first = self._under_way[0]
        began = max(first.at, self._free_since) + first.stood_still
        expected = sum(self._expected(batch.tokens) for batch in self._under_way)
        lead = _LEAD_SECONDS + _LEAD_SHARE * self._expected(self._under_way[-1].tokens)
        return max(0.0, began + expected - now - lead)

    def _learn(self, tokens: int, seconds: float) -> None:
        size = tokens.bit_length()
        known = self._seconds_per_token.get(size, math.inf)
        self._seconds_per_token[size] = min(seconds / tokens, known * (1 + _FORGETTING))
        rate = tokens / seconds
        self.tokens_per_second += (rate - self.tokens_per_second) * (_MEMORY if self.tokens_per_second else 1.0)

    def _expected(self, tokens: int) -> float:
        """0 for a size that was not seen yet: then nothing is held back."""
        return tokens * self._seconds_per_token.get(tokens.bit_length(), 0.0)
