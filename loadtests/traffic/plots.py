"""Plots of a run, as SVG to stand in a page."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .running import Run
from .samples import BULK, CLASSES, ONLINE, REFUSED, SCORE, Sample, by_phase, percentile

mpl.use("svg")
mpl.rcParams.update(
    {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "rose",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
    }
)
_P50, _P90, _P99, _BULK, _SCORE = "#0b6e99", "#c98a00", "#b3261e", "#5b6b2f", "#6a4c93"
_SIZE = (7.2, 2.9)


def plots(run: Run) -> list[tuple[str, str]]:
    """Every plot the run has data for: its caption and its SVG."""
    drawn = [
        ("Latency of online queries against the rate offered", _latency_by_rate(run)),
        ("Latency over time; bulk jobs run where it is shaded", _latency_over_time(run)),
        ("Tokens per second: what the server ran, or, where that is not known, what was answered", _tokens(run)),
    ]
    if run.readings:
        drawn.append(("Tokens waiting in the queue, from /metrics", _queue(run)))
    drawn.append(("Requests refused or failed, per second", _refusals(run)))
    return drawn


def _latency_by_rate(run: Run) -> str:
    figure, axes = _figure("queries/s offered", "ms")
    summaries = by_phase(run.samples, run.plan)
    for bulk, style in ((False, "-o"), (True, "--s")):
        rows = [
            (phase.rate, found[ONLINE])
            for phase, found in zip(run.plan.phases, summaries, strict=True)
            if phase.bulk is bulk and phase.is_steady and found[ONLINE].answered
        ]
        rows.sort(key=lambda row: row[0])
        for name, colour in (("p50_ms", _P50), ("p90_ms", _P90), ("p99_ms", _P99)):
            if rows:
                label = f"{name[:3]}{', beside bulk' if bulk else ''}"
                axes.plot([r for r, _ in rows], [getattr(s, name) for _, s in rows], style, color=colour, label=label)
    axes.set_yscale("log")
    return _svg(figure, axes)


def _latency_over_time(run: Run) -> str:
    figure, axes = _figure("seconds", "ms")
    _shade_bulk(axes, run)
    for share, colour in ((0.50, _P50), (0.90, _P90), (0.99, _P99)):
        points = [
            (middle, percentile(sorted(s.seconds * 1e3 for s in window if s.outcome == "ok"), share))
            for middle, window in _windows(run, ONLINE)
        ]
        points = [point for point in points if not math.isnan(point[1])]
        axes.plot(*zip(*points, strict=True), color=colour, label=f"p{share * 100:.0f}") if points else None
    axes.set_yscale("log")
    return _svg(figure, axes)


def _tokens(run: Run) -> str:
    figure, axes = _figure("seconds", "tokens/s")
    _shade_bulk(axes, run)
    if run.readings:
        rates = [(new.at, (new.tokens - old.tokens) / (new.at - old.at)) for old, new in pairwise(run.readings)]
        axes.step([at for at, _ in rates], [rate for _, rate in rates], where="pre", color=_P50)
        return _svg(figure, axes)
    width = _window_seconds(run)
    for traffic, colour in ((ONLINE, _P50), (BULK, _BULK), (SCORE, _SCORE)):
        points = [(middle, sum(s.tokens for s in window) / width) for middle, window in _windows(run, traffic)]
        axes.step(*zip(*points, strict=True), where="mid", color=colour, label=traffic)
    return _svg(figure, axes)


def _queue(run: Run) -> str:
    figure, axes = _figure("seconds", "tokens waiting")
    for lane, colour in ((ONLINE, _P50), (BULK, _BULK)):
        axes.plot([r.at for r in run.readings], [r.queued.get(lane, 0) for r in run.readings], color=colour, label=lane)
    return _svg(figure, axes)


def _refusals(run: Run) -> str:
    figure, axes = _figure("seconds", "requests/s")
    width = _window_seconds(run)
    for outcome, colour in ((REFUSED, _P90), ("failed", _P99)):
        points = [
            (windows[0][0], sum(s.outcome == outcome for _, window in windows for s in window) / width)
            for windows in zip(*(_windows(run, traffic) for traffic in CLASSES), strict=True)
        ]
        axes.step(*zip(*points, strict=True), where="mid", color=colour, label=outcome)
    axes.set_ylim(bottom=0)
    return _svg(figure, axes)


def _window_seconds(run: Run) -> float:
    return max(1.0, run.plan.seconds / 60)


def _windows(run: Run, traffic: str) -> list[tuple[float, list[Sample]]]:
    """Requests by when they were due: the middle of each window, and its requests."""
    width = _window_seconds(run)
    windows: list[list[Sample]] = [[] for _ in range(math.ceil(run.plan.seconds / width))]
    for sample in run.samples:
        if sample.traffic == traffic and sample.due < run.plan.seconds:
            windows[int(sample.due / width)].append(sample)
    return [((index + 0.5) * width, window) for index, window in enumerate(windows)]


def _shade_bulk(axes: Axes, run: Run) -> None:
    for phase, (start, end) in zip(run.plan.phases, pairwise(run.plan.starts), strict=True):
        if phase.bulk:
            axes.axvspan(start, end, color=_BULK, alpha=0.12, linewidth=0)


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _svg(figure: Figure, axes: Axes) -> str:
    handles: Sequence[object] = axes.get_legend_handles_labels()[0]
    if handles:
        axes.legend(ncols=2)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]  # without the XML prologue
