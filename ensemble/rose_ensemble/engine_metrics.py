"""What an engine counts: see README.md, "Metrics"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rose_backend.core import Batch, Lane, Outcome
from rose_backend.engine import RoseEngine
from rose_backend.errors import RoseError, Status
from rose_backend.metrics import BatchReport, RequestReport
from rose_backend.service import RoseService
from rose_ensemble.metrics import SECONDS, SEQUENCES, TOKENS, MetricsBook

_GRAPHS = {
    "eager": "Batches run eagerly",
    "captures": "Graphs recorded",
    "replays": "Batches run as a recorded graph",
    "covered": "Of the replays, those padded to a larger batch's graph",
    "evictions": "Graphs given up for want of memory",
}
_REFUSALS = (Status.UNAVAILABLE, Status.INVALID_ARG)


class EngineMetrics:
    """See `rose_backend.metrics.MetricsSink`.

    Args:
        book: where it all goes.
        engine: asked for its budget and graphs.
    """

    def __init__(self, book: MetricsBook, engine: RoseEngine) -> None:
        self._book = book
        self._engine = engine
        self._requests = {
            (lane, outcome): book.counter("rose_requests_total", "Requests answered", lane=lane, outcome=outcome)
            for lane in Lane
            for outcome in Outcome
        }
        self._refused = {
            status: book.counter("rose_refused_requests_total", "Requests refused before they queued", reason=status)
            for status in _REFUSALS
        }
        self._queued = {
            lane: book.histogram("rose_queue_seconds", "From arrival to the first batch", SECONDS, lane=lane)
            for lane in Lane
        }
        self._answered = {
            lane: book.histogram("rose_request_seconds", "From arrival to the answer", SECONDS, lane=lane)
            for lane in Lane
        }
        self._batches = book.counter("rose_batches_total", "Batches run")
        self._shared = book.counter("rose_shared_batches_total", "Batches with sequences of several requests")
        self._mixed = book.counter("rose_mixed_batches_total", "Batches of requests that differ in size")
        self._tokens = book.counter("rose_tokens_total", "Tokens run")
        self._padding = book.counter("rose_padding_tokens_total", "Tokens that batches were padded with")
        self._sequences = book.counter("rose_sequences_total", "Sequences run")
        self._step_seconds = book.histogram("rose_step_seconds", "Device time of a batch", SECONDS)
        self._copy_seconds = book.histogram("rose_copy_seconds", "Copy of a batch's vectors to the host", SECONDS)
        self._batch_tokens = book.histogram("rose_batch_tokens", "Tokens of a batch", TOKENS)
        self._batch_sequences = book.histogram("rose_batch_sequences", "Sequences of a batch", SEQUENCES)

    def watch(self, service: RoseService) -> None:
        """Add what is read instead of counted."""
        book, engine = self._book, self._engine
        for lane in Lane:
            book.gauge("rose_queued_tokens", "Tokens waiting", partial(_queued_tokens, service, lane), lane=lane)
            book.gauge("rose_queued_requests", "Requests waiting", partial(_queued_requests, service, lane), lane=lane)
        book.gauge("rose_token_budget", "Most tokens in a batch of several sequences", lambda: engine.budgets.tokens)
        book.gauge("rose_beside_budget", "The same of bulk work beside others", lambda: engine.budgets.beside)
        book.gauge("rose_bulk_budget", "The same while only bulk work comes", lambda: engine.budgets.bulk)
        for name, description in _GRAPHS.items():
            book.running_total(f"rose_graph_{name}_total", description, partial(_graph_counter, engine, name))
        book.gauge("rose_graph_bytes", "Device memory of all graphs", partial(_graph_counter, engine, "num_bytes"))

    def batch_done(self, report: BatchReport) -> None:
        """See `MetricsSink`."""
        batch = report.batch
        with self._book.lock:
            self._batches.add()
            self._shared.add(len(batch.segments) > 1)
            self._mixed.add(_is_mixed(batch))
            self._tokens.add(batch.num_tokens)
            self._padding.add(report.padding)
            self._sequences.add(batch.num_sequences)
            self._step_seconds.observe(report.seconds)
            self._copy_seconds.observe(report.copy_seconds)
            self._batch_tokens.observe(batch.num_tokens)
            self._batch_sequences.observe(batch.num_sequences)

    def requests_done(self, reports: Sequence[RequestReport]) -> None:
        """See `MetricsSink`."""
        with self._book.lock:
            for request, outcome, seconds in reports:
                lane = request.lane
                assert lane is not None
                self._requests[lane, outcome].add()
                self._answered[lane].observe(seconds)
                if request.packed_at is not None:
                    self._queued[lane].observe(request.packed_at - request.arrived)

    def refused(self, error: RoseError) -> None:
        """See `MetricsSink`."""
        with self._book.lock:
            self._refused[error.status].add()


def _is_mixed(batch: Batch) -> bool:
    return len({segment.request.num_sequences for segment in batch.segments}) > 1


def _queued_tokens(service: RoseService, lane: Lane) -> float:
    return service.depth(lane).tokens


def _queued_requests(service: RoseService, lane: Lane) -> float:
    return service.depth(lane).requests


def _graph_counter(engine: RoseEngine, name: str) -> float:
    return float(getattr(engine.runner.graph_counters, name))
