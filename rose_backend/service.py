"""Queue, engine thread and completer: Engine and Packer as one object with `submit` and `close`.

The engine thread packs and launches batch N+1 while the completer waits for batch N and answers its requests.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rose_backend.admission import Limits
from rose_backend.core import Batch, Float32Array, Request, Segment
from rose_backend.errors import EngineError, RoseError, UnavailableError
from rose_backend.metrics import MetricsSink
from rose_backend.packer import TokenPacker

logger = logging.getLogger(__name__)

_BATCHES_IN_FLIGHT = 2  # one on the device, one launched behind it


class Rows(Protocol):
    """What a step returns: see `LazyTensor`."""

    def numpy(self) -> Float32Array:
        """Wait for and return `[num_sequences, dim]` float32."""


class Engine(Protocol):
    """What the service needs of an engine: see `RoseEngine`."""

    def step(self, batch: Batch) -> Rows:
        """Launch one batch."""


@dataclass(frozen=True)
class _FailedStep:
    """Takes the place of a step's rows, so that the completer answers failures as it answers everything else."""

    error: EngineError

    def numpy(self) -> Float32Array:
        raise self.error


class RoseService:
    """Owns the queue and the two threads.

    Every request that `submit` accepts is answered exactly once, through its `reply`, also when a step fails
    and when the service closes.

    Args:
        engine: used by the engine thread only.
        packer: decides what shares a batch.
        limits: what requests are checked against.
        metrics: told of every batch and answer.
    """

    def __init__(self, engine: Engine, packer: TokenPacker, limits: Limits, metrics: MetricsSink) -> None:
        self._engine = engine
        self._packer = packer
        self._limits = limits
        self._metrics = metrics
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._launched: queue.Queue[tuple[Batch, Rows] | None] = queue.Queue(_BATCHES_IN_FLIGHT)
        self._engine_thread = threading.Thread(target=self._launch_batches, name="rose-engine")
        self._completer_thread = threading.Thread(target=self._complete_batches, name="rose-completer")
        self._engine_thread.start()
        self._completer_thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its `reply` is called later from another thread.

        Raises:
            InvalidArgumentError: the request breaks a limit; `reply` will not be called.
            UnavailableError: the service is closing; `reply` will not be called.
        """
        self._limits.check(request)
        with self._changed:
            if self._closing:
                raise UnavailableError("the server is shutting down")
            self._waiting.append(request)
            self._changed.notify()

    def close(self) -> None:
        """Refuse new requests, answer those accepted, stop both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._engine_thread.join()
        self._completer_thread.join()

    def _launch_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._metrics.batch_started(batch)
            self._launch(batch)
        self._launched.put(None)

    def _next_batch(self) -> Batch | None:
        """Wait for work; None once the service is closing and the queue is empty."""
        with self._changed:
            while (batch := self._packer.take(self._waiting)) is None and not self._closing:
                self._changed.wait()
        return batch

    def _launch(self, batch: Batch) -> None:
        try:
            rows = self._engine.step(batch)
        except Exception as cause:  # noqa: BLE001 - whatever a step raises, its requests get an answer
            self._isolate(batch, cause)
        else:
            self._launched.put((batch, rows))

    def _isolate(self, batch: Batch, cause: Exception) -> None:
        """A step failed: run its requests one by one, so that only the one at fault fails."""
        logger.warning("step failed", extra={"sequences": batch.num_sequences, "cause": repr(cause)})
        if len(batch.segments) == 1:
            self._launched.put((batch, _FailedStep(EngineError(f"the step failed: {cause!r}"))))
            return
        for segment in batch.segments:
            self._launch(Batch.of((segment,)))

    def _complete_batches(self) -> None:
        while (launched := self._launched.get()) is not None:
            batch, rows = launched
            try:
                self._hand_out(batch, rows.numpy())
            except EngineError as error:
                self._fail(batch, error)
            except Exception as cause:  # noqa: BLE001 - a device fault shows up here; its requests get an answer
                logger.warning("batch lost", extra={"sequences": batch.num_sequences, "cause": repr(cause)})
                self._fail(batch, EngineError(f"the device failed: {cause!r}"))

    def _hand_out(self, batch: Batch, vectors: Float32Array) -> None:
        """Put a batch's vectors back in the order of its segments and answer the requests that are whole."""
        unsorted = np.empty((batch.num_sequences, vectors.shape[1]), np.float32)
        unsorted[batch.order] = vectors
        first = 0
        for segment in batch.segments:
            self._add(segment, unsorted[first : first + segment.count])
            first += segment.count

    def _add(self, segment: Segment, vectors: Float32Array) -> None:
        request = segment.request
        if segment.count == request.num_sequences:
            self._answer(request, vectors)
            return
        if request.rows is None:
            request.rows = np.empty((request.num_sequences, vectors.shape[1]), np.float32)
        request.rows[segment.first : segment.first + segment.count] = vectors
        request.num_done += segment.count
        if request.num_done == request.num_sequences:
            self._answer(request, request.rows)

    def _fail(self, batch: Batch, error: EngineError) -> None:
        for segment in batch.segments:
            if not segment.request.answered:
                self._answer(segment.request, error)

    def _answer(self, request: Request, outcome: Float32Array | RoseError) -> None:
        request.answered = True
        seconds = time.monotonic() - request.arrived
        failed = isinstance(outcome, RoseError)
        self._metrics.request_done(num_sequences=request.num_sequences, seconds=seconds, failed=failed)
        try:
            request.reply(outcome)
        except Exception:
            # The receiver is gone or broken; the completer must live on for everybody else.
            logger.exception("reply failed")
