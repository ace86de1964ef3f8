"""What came of each request, and what that says about the server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .plan import Phase, Plan

ONLINE, BULK, SCORE = "online", "bulk", "score"
CLASSES = (ONLINE, BULK, SCORE)
OK, REFUSED, FAILED = "ok", "refused", "failed"


class Sample(NamedTuple):
    """One request.

    Attributes:
        traffic: `online`, `bulk` or `score`.
        phase: of the plan, in which it was due.
        due: seconds after the start at which it should have left.
        seconds: from then to its answer; what the client itself was late by is in it.
        texts: it carried; of a scoring request its documents.
        tokens: the server says it ran; 0 if it was not answered.
        outcome: `ok`, `refused` or `failed`.
    """

    traffic: str
    phase: int
    due: float
    seconds: float
    texts: int
    tokens: int
    outcome: str


def read_samples(path: Path) -> list[Sample]:
    """Read what `write_samples` wrote."""
    return [Sample(*row) for row in json.loads(path.read_text())]


def write_samples(path: Path, samples: Iterable[Sequence[Any]]) -> None:
    """Write one JSON list, a row a request."""
    path.write_text(json.dumps([list(sample) for sample in samples]))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank); NaN of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass(frozen=True)
class Summary:
    """One class of traffic over some time.

    Attributes:
        requests: that were due.
        answered: of those.
        refused: because the server was full.
        failed: otherwise.
        p50_ms: latency of the answered ones; NaN without any.
        p90_ms: likewise.
        p99_ms: likewise.
        requests_per_s: answered.
        texts_per_s: answered.
        tokens_per_s: answered.
    """

    requests: int
    answered: int
    refused: int
    failed: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    requests_per_s: float
    texts_per_s: float
    tokens_per_s: float


def summarize(samples: Iterable[Sample], seconds: float) -> Summary:
    """Of requests that took `seconds` together, from the first one's being due to the last one's answer."""
    found = list(samples)
    answered = [sample for sample in found if sample.outcome == OK]
    latencies = sorted(sample.seconds * 1e3 for sample in answered)
    return Summary(
        requests=len(found),
        answered=len(answered),
        refused=sum(sample.outcome == REFUSED for sample in found),
        failed=sum(sample.outcome == FAILED for sample in found),
        p50_ms=percentile(latencies, 0.50),
        p90_ms=percentile(latencies, 0.90),
        p99_ms=percentile(latencies, 0.99),
        requests_per_s=len(answered) / seconds,
        texts_per_s=sum(sample.texts for sample in answered) / seconds,
        tokens_per_s=sum(sample.tokens for sample in answered) / seconds,
    )


def by_phase(samples: Sequence[Sample], plan: Plan) -> list[dict[str, Summary]]:
    """For each phase, its traffic by class."""
    return [
        {traffic: summarize(found, _span(found, plan, index)) for traffic, found in classes.items()}
        for index, classes in enumerate(_classes(samples, plan))
    ]


def totals(
    samples: Sequence[Sample], plan: Plan, wanted: Callable[[Phase], bool] = lambda phase: not phase.is_warm_up
) -> dict[str, Summary]:
    """Each class of traffic over those of the wanted phases that have it; its rates are of those phases' time."""
    phases = [(index, classes) for index, classes in enumerate(_classes(samples, plan)) if wanted(plan.phases[index])]
    found = {}
    for traffic in CLASSES:
        own = [(index, classes[traffic]) for index, classes in phases if has(plan.phases[index], traffic)]
        seconds = sum(_span(sent, plan, index) for index, sent in own)
        if seconds:
            found[traffic] = summarize((sample for _, sent in own for sample in sent), seconds)
    return found


def has(phase: Phase, traffic: str) -> bool:
    """Whether a phase has a class of traffic."""
    return {ONLINE: phase.rate > 0, BULK: phase.bulk, SCORE: phase.score > 0}[traffic]


def _classes(samples: Sequence[Sample], plan: Plan) -> list[dict[str, list[Sample]]]:
    found: list[dict[str, list[Sample]]] = [{traffic: [] for traffic in CLASSES} for _ in plan.phases]
    for sample in samples:
        found[sample.phase][sample.traffic].append(sample)
    return found


def _span(samples: Sequence[Sample], plan: Plan, phase: int) -> float:
    """Seconds of a phase, and beyond until its last answer: what was sent in it was not all answered in it."""
    answers = (sample.due + sample.seconds for sample in samples if sample.outcome == OK)
    return max(plan.starts[phase + 1], *answers, 0.0) - plan.starts[phase]
