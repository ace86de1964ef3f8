"""What the engine reports. The server's sink lives beside its adapter; this package only names the events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rose_backend.core import Batch, Outcome, Request
from rose_backend.errors import RoseError


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch that came back.

    Attributes:
        batch: what ran.
        seconds: how long the device had it.
        copy_seconds: of these, how long the vectors took to the host.
        padding: tokens that were run beside the batch's own.
        replayed: whether it ran as a recorded graph.
        began_at: `time.monotonic()` seconds when the device began with it.
        finished_at: the same when its vectors were on the host.
    """

    batch: Batch
    seconds: float
    copy_seconds: float
    padding: int
    replayed: bool
    began_at: float
    finished_at: float


class RequestReport(NamedTuple):
    """A request that is answered.

    Attributes:
        request: what was asked; `packed_at` says when it left the queue.
        outcome: how it ended.
        seconds: from its arrival to its answer.
    """

    request: Request
    outcome: Outcome
    seconds: float


class MetricsSink(Protocol):
    """Receives events from several threads; implementations must be thread-safe and cheap."""

    def batch_done(self, report: BatchReport) -> None:
        """A batch came back from the device."""

    def requests_done(self, reports: Sequence[RequestReport]) -> None:
        """Requests are being answered, those of a batch together."""

    def refused(self, error: RoseError) -> None:
        """A request was refused before it was queued."""


class NullMetrics:
    """Counts nothing; for benchmarks and tests of other parts."""

    def batch_done(self, report: BatchReport) -> None:
        """Ignore the event."""

    def requests_done(self, reports: Sequence[RequestReport]) -> None:
        """Ignore the event."""

    def refused(self, error: RoseError) -> None:
        """Ignore the event."""
