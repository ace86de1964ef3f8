"""What load is offered when: phases of steady traffic, and a day pressed into minutes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

_STEADY = re.compile(
    r"(?P<warm>warm:)?(?P<seconds>[\d.]+)x(?P<rate>[\d.]+)(?P<bulk>\+bulk)?(?:\+score(?P<score>[\d.]+))?"
)
_DAY = re.compile(r"day:(?P<seconds>[\d.]+)x(?P<peak>[\d.]+)(?:\+score(?P<score>[\d.]+))?")

# Share of the day's peak by hour, 0 to 23: people at work, and a lull at noon. An assumption; put your own here.
_HOURS = (8, 6, 5, 5, 5, 6, 10, 22, 52, 80, 95, 92, 74, 82, 98, 100, 92, 75, 50, 36, 30, 25, 18, 12)
_BULK_HOURS = range(1, 5)  # the index is rebuilt at night, and has not always finished by morning
_LATE_BULK_HOURS = range(10, 12)


WARM, DAY = "warm", "day"
_STEADY_SECONDS = 5.0


class PlanError(ValueError):
    """A plan that cannot be read; the message says what was expected."""


@dataclass(frozen=True)
class Phase:
    """Traffic that does not change for a while.

    Attributes:
        seconds: how long.
        rate: online queries a second, at random moments.
        bulk: whether bulk jobs run beside them.
        score: scoring requests a second, at random moments.
        part: `warm`: left out of what is added up; `day`: an hour of a day; else empty.
    """

    seconds: float
    rate: float
    bulk: bool
    score: float = 0.0
    part: str = ""

    @property
    def is_warm_up(self) -> bool:
        """Whether what comes of it says nothing of a server that has been running."""
        return self.part == WARM

    @property
    def is_steady(self) -> bool:
        """Whether it says something by itself: hours of a day pressed into a minute do not."""
        return self.seconds >= _STEADY_SECONDS and not self.is_warm_up


@dataclass(frozen=True)
class Plan:
    """Phases, one after another.

    Attributes:
        phases: at least one.
    """

    phases: tuple[Phase, ...]

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read parts joined by commas.

        A part is `SECONDSxRATE`, queries a second, with `+bulk` for bulk jobs beside them and `+scoreRATE` for scoring
        requests a second, in this order, and with `warm:` in front if it is to warm the server up only; or
        `day:SECONDSxPEAK` with `+scorePEAK` or without.

        Raises:
            PlanError: names the part that is none of them.
        """
        phases: list[Phase] = []
        for part in text.split(","):
            if day := _DAY.fullmatch(part.strip()):
                phases += day_phases(float(day["seconds"]), float(day["peak"]), float(day["score"] or 0))
            elif steady := _STEADY.fullmatch(part.strip()):
                seconds, rate, score = (float(steady[name] or 0) for name in ("seconds", "rate", "score"))
                phases.append(Phase(seconds, rate, steady["bulk"] is not None, score, WARM if steady["warm"] else ""))
            else:
                raise PlanError(
                    f"plan part {part!r}: expected 10x50, 10x50+bulk, 10x50+score2, warm:10x50 or day:360x200+score2 "
                    "(seconds x queries/s)"
                )
        if any(phase.seconds <= 0 for phase in phases):
            raise PlanError(f"plan {text!r}: a phase must last longer than 0 s")
        return cls(tuple(phases))

    @property
    def seconds(self) -> float:
        """From the first phase's start to the last one's end."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def starts(self) -> list[float]:
        """When each phase starts, in seconds, and when the last one ends."""
        return [0.0, *accumulate(phase.seconds for phase in self.phases)]

    def index_at(self, now: float) -> int | None:
        """Which phase it is, `now` seconds after the start; None once all are over."""
        for index, end in enumerate(self.starts[1:]):
            if now < end:
                return index
        return None

    def next_arrival(self, now: float, work: float, share: float, *, scoring: bool = False) -> float | None:
        """When a source that sends `share` of all queries, or of all scoring requests, sends its next one.

        A Poisson process whose rate changes is one of rate 1 on a clock that runs at that rate (time change): `work`,
        drawn from the exponential distribution of mean 1, is used up at the rate of the phases it passes through.

        Args:
            now: seconds after the start, when it sent its last one.
            work: what is to be used up.
            share: of every phase's rate.
            scoring: whether that is the rate of scoring requests.

        Returns:
            Seconds after the start; None: not before the end.
        """
        for phase, end in zip(self.phases, self.starts[1:], strict=True):
            if now >= end:
                continue
            rate = (phase.score if scoring else phase.rate) * share
            if rate > 0 and now + work / rate < end:
                return now + work / rate
            work -= rate * (end - now)
            now = end
        return None


def day_phases(seconds: float, peak: float, score: float = 0.0) -> list[Phase]:
    """24 hours pressed into `seconds`, a phase each.

    Args:
        seconds: for the whole day.
        peak: queries a second in the busiest hour.
        score: scoring requests a second in the busiest hour.
    """
    return [
        Phase(
            seconds / len(_HOURS),
            peak * share / 100,
            hour in _BULK_HOURS or hour in _LATE_BULK_HOURS,
            score * share / 100,
            DAY,
        )
        for hour, share in enumerate(_HOURS)
    ]
