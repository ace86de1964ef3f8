"""What a day of all classes of traffic together shows: each class by itself, and what the others cost bulk work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from .plan import DAY, Phase, Plan
from .samples import BULK, OK, SCORE, Sample, Summary, has, summarize, totals

ENOUGH = 100
"""Requests of a class, at least, for its p99 to say anything."""


@dataclass(frozen=True)
class Mix:
    """A plan's day.

    Attributes:
        classes: each class of traffic over the hours that have it.
        by_documents: scoring requests by how many documents they carried.
        bulk_alone: texts a second of bulk jobs while nothing else was sent; 0: the plan has no such phase.
        bulk_beside: texts a second of bulk jobs during the day, over the hours that have them.
    """

    classes: dict[str, Summary]
    by_documents: dict[int, Summary]
    bulk_alone: float
    bulk_beside: float

    @property
    def kept(self) -> float | None:
        """What bulk keeps of its lone rate; None: that is not known."""
        return self.bulk_beside / self.bulk_alone if self.bulk_alone else None

    @property
    def scarce(self) -> list[str]:
        """Classes with too few requests to speak of a p99."""
        return [traffic for traffic, summary in self.classes.items() if summary.requests < ENOUGH]


def mix_of(samples: Sequence[Sample], plan: Plan) -> Mix | None:
    """The day in a plan; None: it has none."""
    if not any(_is_day(phase) for phase in plan.phases):
        return None
    scored = [sample for sample in samples if sample.traffic == SCORE and _is_day(plan.phases[sample.phase])]
    seconds = sum(phase.seconds for phase in plan.phases if _is_day(phase) and has(phase, SCORE))
    return Mix(
        totals(samples, plan, _is_day),
        {
            count: summarize((sample for sample in scored if sample.texts == count), seconds)
            for count in sorted({sample.texts for sample in scored})
        },
        texts_per_second(samples, plan, _is_bulk_alone),
        texts_per_second(samples, plan, lambda phase: _is_day(phase) and phase.bulk),
    )


def texts_per_second(samples: Sequence[Sample], plan: Plan, wanted: Callable[[Phase], bool]) -> float:
    """The rate of bulk jobs during the wanted phases; 0 without any.

    A request that is under way at the beginning or the end of a stretch of such phases counts with the share of its
    time that lies in it: jobs always have a request under way, and phases may be no longer than a request.
    """
    stretches = [(start, end) for inside, start, end in _stretches(plan, wanted) if inside]
    seconds = sum(end - start for start, end in stretches)
    texts = sum(
        sample.texts * max(0.0, min(end, sample.due + sample.seconds) - max(start, sample.due)) / sample.seconds
        for sample in samples
        if sample.traffic == BULK and sample.outcome == OK
        for start, end in stretches
    )
    return texts / seconds if seconds else 0.0


def _stretches(plan: Plan, wanted: Callable[[Phase], bool]) -> list[tuple[bool, float, float]]:
    """Neighbouring phases that are all wanted, or all not: which, from when, until when."""
    spans = zip(plan.phases, pairwise(plan.starts), strict=True)
    found = []
    for inside, group in groupby(spans, key=lambda item: wanted(item[0])):
        own = [span for _, span in group]
        found.append((inside, own[0][0], own[-1][1]))
    return found


def _is_day(phase: Phase) -> bool:
    return phase.part == DAY


def _is_bulk_alone(phase: Phase) -> bool:
    return phase.bulk and not phase.rate and not phase.score and not phase.is_warm_up
