"""Load plans: what they mean, and arrivals that are those of a Poisson process with their rates."""

from __future__ import annotations

import random

import pytest

from loadtests.traffic.plan import Phase, Plan, PlanError


def test_parsed() -> None:
    plan = Plan.parse("10x50, 2.5x8+bulk")
    assert plan.phases == (Phase(10, 50, bulk=False), Phase(2.5, 8, bulk=True))
    assert plan.seconds == 12.5
    assert [plan.index_at(now) for now in (0, 9.99, 10, 12.49, 12.5)] == [0, 0, 1, 1, None]


def test_a_day_has_24_hours_a_peak_and_bulk_at_night() -> None:
    plan = Plan.parse("day:360x200")
    assert len(plan.phases) == 24
    assert plan.seconds == pytest.approx(360)
    assert max(phase.rate for phase in plan.phases) == 200
    assert plan.phases[3].bulk
    assert not plan.phases[15].bulk


def test_scoring_follows_the_hours_and_warming_up_is_told_apart() -> None:
    plan = Plan.parse("warm:5x10+bulk+score2,10x0+score0.5,day:240x200+score4")
    assert plan.phases[:2] == (Phase(5, 10, bulk=True, score=2, part="warm"), Phase(10, 0, bulk=False, score=0.5))
    assert [phase.is_warm_up for phase in plan.phases[:2]] == [True, False]
    assert all(phase.score == pytest.approx(phase.rate / 50) and phase.part == "day" for phase in plan.phases[2:])
    # 0.25/s for 10 s use up 2.5; the day's first hour, at 8 % of its peak, the rest at 0.16/s
    assert plan.next_arrival(5.0, 3.0, 0.5, scoring=True) == pytest.approx(15 + 0.5 / 0.16)


@pytest.mark.parametrize(
    "text", ["", "10", "10x", "x5", "10x5+batch", "day:10", "0x5", "10x5+score", "10x5+score1+bulk"]
)
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.parse(text)


def test_work_is_used_up_at_the_rate_of_each_phase() -> None:
    plan = Plan.parse("10x2,10x0,10x4")
    assert plan.next_arrival(0.0, 3.0, 1.0) == 1.5
    # 2/s for the 2 s that are left use up 4; nothing for 10 s; the last 2 take 0.5 s
    assert plan.next_arrival(8.0, 6.0, 1.0) == 20.5
    assert plan.next_arrival(8.0, 6.0, 0.5) == 22.0
    assert plan.next_arrival(29.0, 5.0, 1.0) is None


def test_sources_together_send_at_the_plans_rates() -> None:
    plan, rng = Plan.parse("500x2,500x10"), random.Random(0)
    arrivals: list[float] = []
    for _ in range(4):
        due = plan.next_arrival(0.0, rng.expovariate(1.0), 1 / 4)
        while due is not None:
            arrivals.append(due)
            due = plan.next_arrival(due, rng.expovariate(1.0), 1 / 4)
    slow, fast = (sum(lower <= due < lower + 500 for due in arrivals) for lower in (0, 500))
    assert slow == pytest.approx(1000, abs=4 * 1000**0.5)  # four standard deviations of a Poisson count
    assert fast == pytest.approx(5000, abs=4 * 5000**0.5)
