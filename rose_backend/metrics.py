"""What the engine counts. The server's sink lives in its adapter; this package only names the events."""

from __future__ import annotations

from typing import Protocol

from rose_backend.core import Batch


class MetricsSink(Protocol):
    """Receives events from the engine's own threads; implementations must be thread-safe and cheap."""

    def batch_started(self, batch: Batch) -> None:
        """A batch went to the engine."""

    def request_done(self, *, num_sequences: int, seconds: float, failed: bool) -> None:
        """A request was answered, `seconds` after it arrived."""


class NullMetrics:
    """Counts nothing; for benchmarks and tests of other parts."""

    def batch_started(self, batch: Batch) -> None:
        """Ignore the event."""

    def request_done(self, *, num_sequences: int, seconds: float, failed: bool) -> None:
        """Ignore the event."""
