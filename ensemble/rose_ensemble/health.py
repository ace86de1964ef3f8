"""When a served model counts as failed, and what is done then. No clock and no I/O: times and findings come in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rose_ensemble.probe import Observation, Outcome


@dataclass(frozen=True)
class HealthPolicy:
    """Limits of the watch over a model; all times in seconds.

    Attributes:
        interval: from the end of one probe to the next.
        hang: without an answered probe or any progress of the engine for this long, a model that is only "busy"
            counts as failed. Generous: a long queue is no failure, and the engine makes progress through it.
        faults: probes answered with an error, in a row, that make a failure.
        tries: reloads before giving up.
        backoff: pause after the first failed try; it doubles with each.
    """

    interval: float = 5.0
    hang: float = 120.0
    faults: int = 3
    tries: int = 3
    backoff: float = 1.0


class Step(Enum):
    """What is due next."""

    PROBE = "probe"
    RELOAD = "reload"
    GIVE_UP = "give up"


class Event(Enum):
    """What people should hear of."""

    FAILED = "failed"
    RECOVERED = "recovered"


class ModelHealth:
    """Health of one model: serving, or failed and being reloaded until a probe is answered.

    Args:
        policy: the limits.
        now: seconds on the clock that all later times are on.

    Attributes:
        step: what to do next.
        due: when to do it.
        cause: why the model failed last, or why the last try to bring it back did.
        failing: whether it failed and is not back.
        failed_at: when it failed last.
        tries: reloads since then.
    """

    def __init__(self, policy: HealthPolicy, now: float) -> None:
        self._policy = policy
        self._alive_at = now
        self._progress: int | None = None
        self._faults = 0
        self.step = Step.PROBE
        self.due = now + policy.interval
        self.cause = ""
        self.failing = False
        self.failed_at = now
        self.tries = 0

    def observed(self, now: float, observation: Observation) -> Event | None:
        """Take in a probe's finding."""
        self.due = now + self._policy.interval
        cause = self._failure(now, observation)
        if cause is not None:
            return self._fail(now, cause)
        if self.failing and observation.outcome is Outcome.ANSWERED:
            self.failing = False
            return Event.RECOVERED
        return None

    def reloaded(self, now: float, error: str | None) -> None:
        """Take in the end of a reload; `error` says why it failed."""
        self.tries += 1
        if error is not None:
            self._fail(now, error)
            return
        self._alive_at = now
        self._faults = 0
        self.step, self.due = Step.PROBE, now

    def _failure(self, now: float, observation: Observation) -> str | None:
        outcome = observation.outcome
        if outcome is Outcome.DEAD or (outcome is Outcome.ABSENT and self.failing):
            return observation.cause
        self._faults = self._faults + 1 if outcome is Outcome.FAULT else 0
        if self._faults >= self._policy.faults:
            return observation.cause
        moved = observation.progress is not None and observation.progress != self._progress
        # A model that someone unloaded on purpose is not ours to mend, and its time begins anew when it is back.
        if moved or outcome in (Outcome.ANSWERED, Outcome.ABSENT):
            self._alive_at = now
            self._progress = observation.progress
        silent = now - self._alive_at
        if silent > self._policy.hang:
            return f"no answer and no progress for {silent:.0f} s; last: {observation.cause}"
        return None

    def _fail(self, now: float, cause: str) -> Event | None:
        self.cause = cause
        first = not self.failing
        if first:
            self.failing, self.failed_at, self.tries = True, now, 0
        if self.tries >= self._policy.tries:
            self.step, self.due = Step.GIVE_UP, now
        else:
            pause = self._policy.backoff * 2 ** (self.tries - 1) if self.tries else 0.0
            self.step, self.due = Step.RELOAD, now + pause
        return Event.FAILED if first else None
