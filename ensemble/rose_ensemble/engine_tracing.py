"""Spans of an engine's requests: queue, step, copy. Made from what the engine reports, in a thread of their own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rose_backend.core import Outcome
from rose_backend.errors import RoseError
from rose_backend.metrics import BatchReport, MetricsSink, RequestReport
from rose_ensemble.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue


@dataclass(frozen=True, slots=True)
class TraceTag:
    """What makes a request's reports spans; its `tag`.

    Attributes:
        parent: what they belong to.
        received: `time.monotonic()` seconds at which the engine's process got the request.
    """

    parent: Context
    received: float


@dataclass(frozen=True, slots=True)
class _Left:
    """A request that has left the engine, at `now`."""

    report: RequestReport
    tag: TraceTag
    now: float


class TracedMetrics:
    """An engine's metrics, and spans of those requests that belong to a trace. See `MetricsSink`.

    Making a span takes as long as much of a small step; it must not hold up the answers of a batch.

    Args:
        metrics: told of everything.
        tracing: makes the spans; closed with this.
    """

    def __init__(self, metrics: MetricsSink, tracing: Tracing) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._reports: queue.SimpleQueue[BatchReport | _Left | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rose-tracing", daemon=True)
        self._thread.start()

    def tag_of(self, request: Any) -> TraceTag | None:
        """The tag of a request of Triton's that has just come; None: it belongs to no trace."""
        parent = self._tracing.parent_of(request)
        return None if parent is None else TraceTag(parent, time.monotonic())

    def batch_done(self, report: BatchReport) -> None:
        """See `MetricsSink`."""
        self._metrics.batch_done(report)
        if any(segment.request.tag is not None for segment in report.batch.segments):
            self._reports.put(report)

    def requests_done(self, reports: Sequence[RequestReport]) -> None:
        """See `MetricsSink`."""
        self._metrics.requests_done(reports)
        for report in reports:
            if isinstance(tag := report.request.tag, TraceTag):
                self._reports.put(_Left(report, tag, time.monotonic()))

    def refused(self, error: RoseError) -> None:
        """See `MetricsSink`."""
        self._metrics.refused(error)

    def close(self) -> None:
        """Send what is left; nothing may be reported any more."""
        self._reports.put(None)
        self._thread.join()
        self._tracing.close()

    def _run(self) -> None:
        while (item := self._reports.get()) is not None:
            if isinstance(item, BatchReport):
                self._add_batch(item)
            else:
                self._add_queue(item)

    def _add_queue(self, left: _Left) -> None:
        request, outcome, _ = left.report
        packed_at = left.now if request.packed_at is None else request.packed_at
        attributes: dict[str, AttributeValue] = {
            "rose.lane": "" if request.lane is None else request.lane.value,
            "rose.tokens": request.num_tokens,
            "rose.sequences": request.num_sequences,
        }
        error = None if outcome is Outcome.SERVED else outcome.value
        self._tracing.add("queue", left.tag.parent, (left.tag.received, packed_at), attributes, error)

    def _add_batch(self, report: BatchReport) -> None:
        batch, finished = report.batch, report.finished_at
        copying = finished - report.copy_seconds
        shared: dict[str, AttributeValue] = {
            "rose.batch.tokens": batch.num_tokens,
            "rose.batch.sequences": batch.num_sequences,
            "rose.batch.requests": len(batch.segments),
            "rose.bucket.tokens": batch.num_tokens + report.padding,
            "rose.graph": "replay" if report.replayed else "eager",
        }
        for segment in batch.segments:
            if not isinstance(tag := segment.request.tag, TraceTag):
                continue
            own: dict[str, AttributeValue] = {"rose.tokens": len(segment.input_ids), "rose.sequences": segment.count}
            self._tracing.add("step", tag.parent, (report.began_at, copying), {**own, **shared})
            self._tracing.add("copy", tag.parent, (copying, finished), own)
