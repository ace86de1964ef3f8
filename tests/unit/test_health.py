"""When a model counts as failed and what is done then, as sequences of findings and times written by hand."""

from __future__ import annotations

import pytest

from rose_ensemble.health import Event, HealthPolicy, ModelHealth, Step
from rose_ensemble.probe import Observation, Outcome

_POLICY = HealthPolicy(interval=5.0, hang=120.0, faults=3, tries=3, backoff=1.0)
_ANSWERED = Observation(Outcome.ANSWERED)
_DEAD = Observation(Outcome.DEAD, "Stub process 'engine-0-cpu_0' is not healthy.")
_ABSENT = Observation(Outcome.ABSENT, "unknown model: 'embed'")
_FAULT = Observation(Outcome.FAULT, "the step failed")


def _busy(progress: int | None = None) -> Observation:
    return Observation(Outcome.BUSY, "timed out", progress)


def _health() -> ModelHealth:
    return ModelHealth(_POLICY, 100.0)


def test_a_healthy_model_is_probed_at_the_interval() -> None:
    health = _health()
    assert (health.step, health.due) == (Step.PROBE, 105.0)
    for now in (105.1, 110.3, 115.9):
        assert health.observed(now, _ANSWERED) is None
        assert (health.step, health.due, health.failing) == (Step.PROBE, now + 5.0, False)


def test_death_is_mended_at_once_and_recovery_is_told_once() -> None:
    health = _health()
    assert health.observed(105.0, _DEAD) is Event.FAILED
    assert (health.step, health.due, health.failed_at) == (Step.RELOAD, 105.0, 105.0)
    assert health.cause == "Stub process 'engine-0-cpu_0' is not healthy."
    health.reloaded(108.0, None)
    assert (health.step, health.due) == (Step.PROBE, 108.0)
    assert health.observed(108.2, _ANSWERED) is Event.RECOVERED
    assert (health.step, health.tries, health.failing) == (Step.PROBE, 1, False)
    assert health.observed(113.2, _ANSWERED) is None


def test_one_dead_stub_of_two_fails_the_model() -> None:
    """Two instances are served alternately, so every second probe is answered."""
    health = _health()
    assert health.observed(105.0, _ANSWERED) is None
    assert health.observed(110.0, _DEAD) is Event.FAILED


def test_failed_reloads_back_off_and_are_given_up() -> None:
    health = _health()
    assert health.observed(105.0, _DEAD) is Event.FAILED
    health.reloaded(106.0, "no such file: model.safetensors")
    assert (health.step, health.due) == (Step.RELOAD, 107.0)
    health.reloaded(107.5, "no such file: model.safetensors")
    assert (health.step, health.due) == (Step.RELOAD, 109.5)
    health.reloaded(110.0, "no such file: model.safetensors")
    assert (health.step, health.due, health.tries) == (Step.GIVE_UP, 110.0, 3)
    assert health.cause == "no such file: model.safetensors"


@pytest.mark.parametrize("found", [_DEAD, _ABSENT])
def test_a_reload_that_brings_nothing_back_counts_as_failed(found: Observation) -> None:
    health = _health()
    events = [health.observed(105.0, _DEAD)]
    for now in (106.0, 116.0, 126.0):
        assert health.step is Step.RELOAD
        health.reloaded(now, None)
        events.append(health.observed(now + 1.0, found))
    assert events == [Event.FAILED, None, None, None]
    assert (health.step, health.cause) == (Step.GIVE_UP, found.cause)


def test_tries_begin_anew_with_the_next_failure() -> None:
    health = _health()
    health.observed(105.0, _DEAD)
    health.reloaded(106.0, "out of memory")
    health.reloaded(108.0, None)
    assert health.observed(109.0, _ANSWERED) is Event.RECOVERED
    assert health.observed(200.0, _DEAD) is Event.FAILED
    assert (health.step, health.due, health.tries, health.failed_at) == (Step.RELOAD, 200.0, 0, 200.0)


def test_busy_is_not_dead_while_the_engine_makes_progress() -> None:
    health = _health()
    for batches, now in enumerate(range(130, 100_000, 30)):
        assert health.observed(float(now), _busy(batches)) is None
    assert health.step is Step.PROBE


def test_busy_without_progress_is_dead_after_the_limit() -> None:
    health = _health()
    assert health.observed(110.0, _busy(7)) is None  # the first count read says that the engine lives
    assert health.observed(229.0, _busy(7)) is None
    assert health.observed(231.0, _busy(7)) is Event.FAILED
    assert health.cause == "no answer and no progress for 121 s; last: timed out"


def test_busy_is_dead_after_the_limit_where_progress_cannot_be_read() -> None:
    health = _health()
    assert health.observed(110.0, _ANSWERED) is None
    assert health.observed(200.0, _busy()) is None
    assert health.observed(231.0, _busy()) is Event.FAILED


def test_an_answer_starts_the_limit_anew() -> None:
    health = _health()
    for now in range(200, 2_000, 100):
        assert health.observed(float(now), _busy()) is None
        assert health.observed(now + 1.0, _ANSWERED) is None


def test_a_reload_starts_the_limit_anew() -> None:
    health = _health()
    health.observed(300.0, _busy())
    assert health.failing
    health.reloaded(700.0, None)
    assert health.observed(730.0, _busy()) is None
    assert health.observed(760.0, _ANSWERED) is Event.RECOVERED


def test_faults_count_only_in_a_row() -> None:
    health = _health()
    for now, found in ((105.0, _FAULT), (110.0, _FAULT), (115.0, _ANSWERED), (120.0, _FAULT), (125.0, _FAULT)):
        assert health.observed(now, found) is None
    assert health.observed(130.0, _FAULT) is Event.FAILED
    assert health.cause == "the step failed"


def test_a_model_unloaded_on_purpose_is_left_alone() -> None:
    health = _health()
    for now in range(105, 2_000, 5):
        assert health.observed(float(now), _ABSENT) is None
    assert health.observed(2_001.0, _busy()) is None  # back, and loading its caches
    assert health.observed(2_002.0, _ANSWERED) is None
