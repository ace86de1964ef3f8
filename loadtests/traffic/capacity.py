"""The highest rate that holds a latency, by trying rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .samples import Summary


@dataclass(frozen=True)
class Trial:
    """A rate that was tried.

    Attributes:
        rate: queries a second.
        summary: of the queries.
        held: whether the latency was held, and every query answered.
    """

    rate: float
    summary: Summary
    held: bool


def holds(summary: Summary, p99_ms: float) -> bool:
    """Whether anything was sent, all of it was answered, and fast enough."""
    return summary.answered == summary.requests > 0 and summary.p99_ms <= p99_ms


def find_capacity(
    measure: Callable[[float], Summary], p99_ms: float, start: float, *, precision: float = 0.1, highest: float = 1e5
) -> tuple[float, list[Trial]]:
    """Double the rate until it is not held, then halve what lies between.

    Args:
        measure: runs a rate.
        p99_ms: to be held.
        start: first rate, in queries a second.
        precision: how far apart the last two rates may be, as a share of the lower one.
        highest: rate to stop at.

    Returns:
        The highest rate that was held (0: not even one of `start / 64`), and every trial in its order.
    """
    trials: list[Trial] = []

    def held(rate: float) -> bool:
        summary = measure(rate)
        trials.append(Trial(rate, summary, holds(summary, p99_ms)))
        return trials[-1].held

    low, high = 0.0, start
    if held(start):
        low = start
        while low < highest and held(low * 2):
            low *= 2
        if low >= highest:
            return low, trials
        high = low * 2
    else:
        while low == 0.0 and high > start / 64:
            if held(high / 2):
                low = high / 2
            else:
                high /= 2
        if low == 0.0:
            return 0.0, trials
    while high - low > precision * low:
        middle = (low + high) / 2
        if held(middle):
            low = middle
        else:
            high = middle
    return low, trials
