"""What runs batches on one kind of device. Signatures only; see `cpu_runner.py` and `cuda_runner.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rose_backend.core import Batch
from rose_backend.graphs import GraphCounters
from rose_backend.lazy_tensor import LazyTensor


class Runner(Protocol):
    """One model on one device."""

    def run(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> LazyTensor:
        """Launch one batch; `[batch.num_sequences, dim]` float32, in batch order.

        Args:
            batch: what to run.
            between_layers: called between a layer and the next where a batch is done when this returns, and may run
                another; not called where a batch is only launched, which is soon over.
        """

    @property
    def graph_counters(self) -> GraphCounters:
        """What was recorded and replayed so far."""

    def idle(self) -> bool:
        """Do a little of what need not be done while requests wait; whether there may be more of it."""

    has_teams: bool
    """Whether each thread that runs batches has threads of its own for it, until it leaves, and others suffer."""

    def leave(self) -> None:
        """The calling thread will not run anything soon: another does."""

    def close(self) -> None:
        """Free what the device holds."""
