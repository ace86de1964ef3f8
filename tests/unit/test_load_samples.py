"""What load tests make of what came of requests, on figures that can be checked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="pip install 'rose-on-triton[loadtest]'")

from loadtests.traffic.capacity import find_capacity
from loadtests.traffic.metrics_page import Reading, read_page
from loadtests.traffic.mix import mix_of
from loadtests.traffic.plan import Plan
from loadtests.traffic.report import as_html, as_json, columns, run_of
from loadtests.traffic.running import Run, ScoreTarget, Target
from loadtests.traffic.samples import (
    BULK,
    FAILED,
    OK,
    ONLINE,
    REFUSED,
    SCORE,
    Sample,
    Summary,
    by_phase,
    percentile,
    read_samples,
    summarize,
    totals,
    write_samples,
)


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert percentile([7.0], 0.99) == 7
    assert math.isnan(percentile([], 0.5))


def test_what_was_not_answered_has_no_latency_and_no_rate() -> None:
    summary = summarize(
        [
            Sample(ONLINE, 0, 0.0, 0.010, 1, 8, OK),
            Sample(ONLINE, 0, 1.0, 0.030, 1, 12, OK),
            Sample(ONLINE, 0, 2.0, 9.0, 1, 0, REFUSED),
            Sample(ONLINE, 0, 3.0, 9.0, 1, 0, FAILED),
        ],
        4.0,
    )
    assert summary == Summary(4, 2, 1, 1, 10.0, 30.0, 30.0, 0.5, 0.5, 5.0)


def test_rates_are_of_the_time_until_the_last_answer() -> None:
    plan = Plan.parse("2x1,10x0+bulk")
    found = [Sample(BULK, 1, 2.0, 4.0, 100, 700, OK), Sample(BULK, 1, 6.0, 16.0, 100, 700, OK)]
    assert by_phase(found, plan)[1][BULK].texts_per_s == 10  # 200 texts from 2 s to 22 s
    assert set(totals(found, plan)) == {ONLINE, BULK}
    assert totals(found, plan)[BULK].tokens_per_s == 70


# Hours of 10 s: 1 to 4 (from 30 s on) and 10 to 11 (120 s on) have bulk.
_DAY = "warm:10x5+bulk,10x0+bulk,day:240x100+score10"
_DAY_SAMPLES = [
    Sample(ONLINE, 0, 1.0, 9.0, 1, 8, OK),  # of the warm-up
    Sample(BULK, 0, 9.0, 2.0, 100, 700, OK),  # half of it while bulk was alone
    Sample(BULK, 1, 11.0, 4.0, 100, 700, OK),
    Sample(BULK, 1, 15.0, 10.0, 100, 700, OK),  # half
    Sample(ONLINE, 2, 21.0, 0.02, 1, 8, OK),
    Sample(BULK, 3, 30.0, 30.0, 100, 700, OK),  # through three hours
    Sample(BULK, 6, 65.0, 10.0, 100, 700, OK),  # half
    Sample(BULK, 12, 120.0, 5.0, 100, 0, REFUSED),
    Sample(SCORE, 12, 120.0, 0.4, 5, 2560, OK),
    Sample(SCORE, 13, 131.0, 0.8, 50, 25600, FAILED),
    Sample(SCORE, 13, 132.0, 0.6, 5, 2560, OK),
]


def test_a_day_beside_bulk_alone() -> None:
    mix = mix_of(_DAY_SAMPLES, Plan.parse(_DAY))
    assert mix is not None
    assert mix.bulk_alone == pytest.approx((50 + 100 + 50) / 10)
    assert mix.bulk_beside == pytest.approx((100 + 50) / 60)
    assert mix.kept == pytest.approx(2.5 / 20)
    assert {traffic: summary.requests for traffic, summary in mix.classes.items()} == {ONLINE: 1, BULK: 3, SCORE: 3}
    assert mix.classes[ONLINE].p99_ms == pytest.approx(20)
    assert [(n, s.requests, s.failed, s.p50_ms) for n, s in mix.by_documents.items() if n == 5] == [(5, 2, 0, 400.0)]
    assert mix.by_documents[50].failed == 1
    assert mix.scarce == [ONLINE, BULK, SCORE]
    assert mix_of(_DAY_SAMPLES[:4], Plan.parse("10x5,10x0+bulk")) is None


def test_a_run_comes_back_as_it_was_written_and_its_page_has_the_day() -> None:
    target = Target("grpc", "a:1", "embed", score=ScoreTarget("rerank", "http://a:2/v1/rerank", "embed", 40))
    readings = [Reading(at, {"online": 3.0}, 5, 0, 0, 1) for at in (1.0, 2.0)]
    run = Run(Plan.parse(_DAY), target, _DAY_SAMPLES, readings)
    machine = {"date": "2029-01-02T03:04:05", "commit": None, "cpu": "c", "cores": 2, "python": "3", "packages": {}}
    machine["command"] = "python loadtest.py"
    written = json.loads(json.dumps(as_json(run, machine)))
    assert written["day"]["bulk_kept"] == 0.125
    assert run_of(written, _DAY_SAMPLES) == Run(run.plan, target, _DAY_SAMPLES, run.readings)
    page = as_html(run, machine, "title")
    assert "20.0 texts/s alone, 2.5 beside the others: 12.5% kept" in page
    assert "of these, 50 documents" in page
    assert "40 words each" in page


def test_samples_come_back_as_they_were_written(tmp_path: Path) -> None:
    found = [Sample(ONLINE, 0, 0.25, 0.5, 1, 8, OK), Sample(BULK, 1, 1.5, 2.0, 100, 700, REFUSED)]
    write_samples(tmp_path / "samples.json", found)
    assert read_samples(tmp_path / "samples.json") == found


@pytest.mark.parametrize(("limit", "start"), [(37.0, 10.0), (37.0, 300.0), (0.7, 20.0), (5000.0, 1.0)])
def test_the_capacity_is_found(limit: float, start: float) -> None:
    def measure(rate: float) -> Summary:  # a server whose p99 is 10 ms up to its limit and 1 s beyond
        return Summary(100, 100, 0, 0, 5, 8, 10 if rate <= limit else 1000, rate, rate, 8 * rate)

    rate, trials = find_capacity(measure, p99_ms=50, start=start)
    assert limit / 1.1 <= rate <= limit
    assert max(trial.rate for trial in trials if trial.held) == rate


def test_a_rate_with_refusals_is_not_held() -> None:
    rate, _ = find_capacity(lambda rate: Summary(100, 99, 1, 0, 5, 8, 10, rate, rate, rate), p99_ms=50, start=64)
    assert rate == 0


def test_the_metrics_page_is_added_up() -> None:
    page = """\
# HELP rose_tokens_total Tokens run
rose_tokens_total{model="a",instance="0"} 100
rose_tokens_total{model="a",instance="1"} 20
rose_padding_tokens_total{model="a",instance="0"} 3
rose_queued_tokens{instance="0",lane="online",model="a"} 7
rose_queued_tokens{instance="1",lane="online",model="a"} 5
rose_queued_tokens{instance="0",lane="bulk",model="a"} 1000
rose_refused_requests_total{model="a",reason="UNAVAILABLE"} 2
rose_tokenize_refused_total{model="a"} 4
nv_inference_count{model="a"} 55
"""
    reading = read_page(page, 3.0)
    assert (reading.at, reading.tokens, reading.padding, reading.refused) == (3.0, 120, 3, 6)
    assert reading.queued == {"online": 12, "bulk": 1000}


def test_columns_show_both_and_their_ratio() -> None:
    left = Summary(10, 10, 0, 0, 20.0, 30.0, 40.0, 5.0, 5.0, 50.0)
    right = Summary(10, 8, 0, 2, 40.0, 60.0, 80.0, 4.0, 4.0, 40.0)
    lines = {line.split()[0]: line.split()[1:] for line in columns(("rose", left), ("other", right)).splitlines()[1:]}
    assert lines["p50_ms"] == ["20.0", "40.0", "0.50x"]
    assert lines["texts_per_s"] == ["5.0", "4.0", "1.25x"]
    assert lines["failed"] == ["0", "2", "0.00x"]
