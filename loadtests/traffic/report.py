"""A run as one HTML page that needs nothing beside it, and as JSON; and back from there."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from .metrics_page import Reading
from .mix import ENOUGH, Mix, mix_of
from .plan import Phase, Plan
from .running import Run, ScoreTarget, Target
from .samples import BULK, CLASSES, ONLINE, SCORE, Sample, Summary, by_phase, totals
from .texts import PASSAGE, QUERY

_STYLE = """
:root{color-scheme:light}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1d2327}h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2rem}
.lead{font-size:1.1rem}.note,figcaption,footer{color:#5a6570;font-size:.88rem}figure{margin:1.2rem 0}
svg{max-width:100%;height:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #e3e6e8;white-space:nowrap}
th:first-child,td:first-child{text-align:left}.bad{color:#b3261e;font-weight:600}
.figures{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}.figure{border:1px solid #e3e6e8;border-radius:.4rem;
padding:.5rem .9rem;min-width:7.5rem}.figure b{display:block;font-size:1.35rem}
"""
_PHASE_HEAD = (
    *("phase", "queries/s offered", "answered", "p50", "p90", "p99 ms"),
    *("refused", "failed", "bulk texts/s", "tokens/s"),
)
_DAY_HEAD = ("class", "requests", "p50", "p90", "p99 ms", "refused", "failed", "texts/s", "tokens a text")
_ROWS = (
    ("requests", "{:,.0f}"),
    ("answered", "{:,.0f}"),
    ("refused", "{:,.0f}"),
    ("failed", "{:,.0f}"),
    ("p50_ms", "{:,.1f}"),
    ("p90_ms", "{:,.1f}"),
    ("p99_ms", "{:,.1f}"),
    ("requests_per_s", "{:,.1f}"),
    ("texts_per_s", "{:,.1f}"),
    ("tokens_per_s", "{:,.0f}"),
)


def as_json(run: Run, machine: dict[str, Any]) -> dict[str, Any]:
    """Everything the page shows, in figures; what does not exist is null."""
    mix = mix_of(run.samples, run.plan)
    return {
        "benchmark": "loadtest",
        "target": asdict(run.target),
        "machine": machine,
        "lengths": {"query words": asdict(QUERY), "passage words": asdict(PASSAGE)},
        "totals": {traffic: figures(summary) for traffic, summary in totals(run.samples, run.plan).items()},
        "day": None if mix is None else _day_figures(mix),
        "phases": [
            {**asdict(phase), "classes": {traffic: figures(summary) for traffic, summary in found.items()}}
            for phase, found in zip(run.plan.phases, by_phase(run.samples, run.plan), strict=True)
        ],
        "metrics": [asdict(reading) for reading in run.readings],
    }


def run_of(found: dict[str, Any], samples: list[Sample]) -> Run:
    """What `as_json` was made of."""
    score = found["target"].pop("score")
    names = {field.name for field in fields(Phase)}
    return Run(
        Plan(tuple(Phase(**{name: phase[name] for name in names & phase.keys()}) for phase in found["phases"])),
        Target(**found["target"], score=None if score is None else ScoreTarget(**score)),
        samples,
        [Reading(**reading) for reading in found["metrics"]],
    )


def as_html(run: Run, machine: dict[str, Any], title: str) -> str:
    """The page.

    Raises:
        ModuleNotFoundError: there is no matplotlib.
    """
    from .plots import plots  # here, since a machine that offers load may be without

    figures = "".join(
        f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>" for caption, svg in plots(run)
    )
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style>
<h1>{html.escape(title)}</h1>
<p class="note">{html.escape(_where(run, machine))}</p>
<p class="lead">{html.escape(_verdict(run))}</p>
{_headline(run)}
{_day(run)}
<h2>By phase</h2>
{_phases(run)}
<p class="note">Latency is from the moment a request was due to its answer, refused requests left out. Queries leave at
random moments (Poisson) whether or not earlier ones were answered, and so do scoring requests; bulk jobs send their
next 100 texts once they have the answer to the last. Lengths are log-normal: {QUERY.mean} words a query,
{PASSAGE.mean} a passage on average.{_about_documents(run)}</p>
<h2>Plots</h2>{figures}
<footer>{html.escape(_packages(machine))}</footer></html>
"""


def columns(left: tuple[str, Summary], right: tuple[str, Summary]) -> str:
    """Two servers' figures side by side, and the first one's as a multiple of the second's, as text."""
    width = max(16, len(left[0]), len(right[0])) + 2
    lines = [f"{'':<16}{left[0]:>{width}}{right[0]:>{width}}{'ratio':>10}"]
    for name, form in _ROWS:
        ours, theirs = getattr(left[1], name), getattr(right[1], name)
        ratio = f"{ours / theirs:.2f}x" if theirs and not math.isnan(ours + theirs) else "-"
        lines.append(f"{name:<16}{form.format(ours):>{width}}{form.format(theirs):>{width}}{ratio:>10}")
    return "\n".join(lines)


def _day_figures(mix: Mix) -> dict[str, Any]:
    return {
        "classes": {traffic: figures(summary) for traffic, summary in mix.classes.items()},
        "score_by_documents": {str(count): figures(summary) for count, summary in mix.by_documents.items()},
        "bulk_alone_texts_per_s": round(mix.bulk_alone, 2),
        "bulk_beside_texts_per_s": round(mix.bulk_beside, 2),
        "bulk_kept": None if mix.kept is None else round(mix.kept, 4),
        "fewer_than_100_requests": mix.scarce,
    }


def figures(summary: Summary) -> dict[str, float | None]:
    """A summary as JSON has it: what does not exist is null."""
    return {name: None if math.isnan(value) else round(value, 2) for name, value in asdict(summary).items()}


def _where(run: Run, machine: dict[str, Any]) -> str:
    device = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores, no GPU"
    when = f"{machine['date'][:16]} UTC · commit {machine['commit']}"
    return f"{run.target.model} over {run.target.kind} · {device} · {when}"


def _verdict(run: Run) -> str:
    refused = sum(sample.outcome == "refused" for sample in run.samples)
    failed = sum(sample.outcome == "failed" for sample in run.samples)
    answered = len(run.samples) - refused - failed
    return (
        f"{answered:,} of {len(run.samples):,} requests answered in {run.plan.seconds:.0f} s, "
        f"{refused:,} refused, {failed:,} failed."
    )


def _day(run: Run) -> str:
    mix = mix_of(run.samples, run.plan)
    if mix is None:
        return ""
    rows = []
    for traffic, summary in mix.classes.items():
        rows.append(_day_row(traffic, summary))
        if traffic == SCORE:
            rows += [_day_row(f"of these, {count} documents", own) for count, own in mix.by_documents.items()]
    notes = []
    if mix.kept is not None:
        notes.append(
            f"Bulk: {mix.bulk_alone:,.1f} texts/s alone, {mix.bulk_beside:,.1f} beside the others: {mix.kept:.1%} kept."
        )
    if mix.scarce:
        notes.append(f"Fewer than {ENOUGH} requests, too few for a p99: {', '.join(mix.scarce)}.")
    return f"<h2>The day</h2>{_table(_DAY_HEAD, rows)}<p>{html.escape(' '.join(notes))}</p>"


def _day_row(name: str, summary: Summary) -> list[str]:
    return [
        html.escape(name),
        f"{summary.requests:,}",
        *(_ms(value) for value in (summary.p50_ms, summary.p90_ms, summary.p99_ms)),
        _count(summary.refused),
        _count(summary.failed),
        f"{summary.texts_per_s:,.1f}",
        f"{summary.tokens_per_s / summary.texts_per_s:,.1f}" if summary.texts_per_s else "-",
    ]


def _about_documents(run: Run) -> str:
    score = run.target.score
    if score is None or not any(phase.score for phase in run.plan.phases):
        return ""
    return f" Documents to be scored have {score.document_words} words each, 5, 25 or 50 of them a request."


def _headline(run: Run) -> str:
    boxes: list[tuple[str, str]] = []
    for traffic, summary in totals(run.samples, run.plan).items():
        boxes += [
            (f"{summary.p50_ms:,.1f} ms", f"{traffic} p50"),
            (f"{summary.p99_ms:,.1f} ms", f"{traffic} p99"),
            (f"{summary.tokens_per_s:,.0f}", f"{traffic} tokens/s"),
        ]
    return (
        '<div class="figures">'
        + "".join(f'<div class="figure"><b>{value}</b>{html.escape(name)}</div>' for value, name in boxes)
        + "</div>"
    )


def _phases(run: Run) -> str:
    steady: list[list[str]] = []
    short: list[list[str]] = []
    for index, (phase, found) in enumerate(zip(run.plan.phases, by_phase(run.samples, run.plan), strict=True)):
        online, bulk = found[ONLINE], found[BULK]
        every = [found[traffic] for traffic in CLASSES]
        rows = steady if phase.is_steady else short
        rows.append(
            [
                f"{index + 1}: {_named(phase)}",
                f"{phase.rate:,.1f}",
                f"{online.requests_per_s:,.1f}",
                *(_ms(value) for value in (online.p50_ms, online.p90_ms, online.p99_ms)),
                _count(sum(summary.refused for summary in every)),
                _count(sum(summary.failed for summary in every)),
                f"{bulk.texts_per_s:,.1f}" if phase.bulk else "-",
                f"{sum(summary.tokens_per_s for summary in every):,.0f}",
            ]
        )
    details = (
        f"<details><summary>{len(short)} short phases, warm-up included</summary>{_table(_PHASE_HEAD, short)}</details>"
    )
    return _table(_PHASE_HEAD, steady) + (details if short else "")


def _named(phase: Phase) -> str:
    beside = [*(["bulk"] if phase.bulk else []), *([f"{phase.score:.2g} scoring/s"] if phase.score else [])]
    warm = ", warm-up" if phase.is_warm_up else ""
    return f"{phase.seconds:g} s{' with ' if beside else ''}{', '.join(beside)}{warm}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in head)}</tr>{cells}</table>"


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.1f}"


def _count(value: int) -> str:
    return f'<span class="bad">{value:,}</span>' if value else "0"


def _packages(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"Python {machine['python']}, {versions}. Command: {machine['command']}"
