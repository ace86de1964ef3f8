"""Queue and engine thread, with a completer behind them: Engine and Packer as one object with `submit` and `close`.

The engine thread packs and launches batch N+1 while the completer waits for batch N and answers its requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rose_backend.admission import Limits
from rose_backend.completer import Completer, Rows
from rose_backend.config import QueueConfig
from rose_backend.core import Batch, Lane, Outcome, Request
from rose_backend.engine_loan import EngineLoan
from rose_backend.errors import EngineError, RoseError, UnavailableError
from rose_backend.lanes import BulkPackers, Depth, Dropped, LanedQueue
from rose_backend.metrics import MetricsSink
from rose_backend.pacing import Ended, Pacer
from rose_backend.packer import TokenPacker

logger = logging.getLogger(__name__)

_DEFAULTS = QueueConfig()
_QUIET_SECONDS = 0.1  # without a request, before the engine thread does anything else
_HAND_OVER_SECONDS = 0.0005  # for the engine thread to take what has come
_BATCHES_IN_FLIGHT = 3  # one on the device, one launched behind it, one being answered


class Engine(Protocol):
    """What the service needs of an engine: see `RoseEngine`."""

    def step(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> Rows:
        """Launch one batch.

        Args:
            batch: what to run.
            between_layers: called now and then meanwhile, and may itself call `step`, by an engine whose values are
                there when this returns; not called by any other.
        """

    def idle(self) -> bool:
        """Do a little of what need not be done while requests wait; whether there may be more of it."""

    @property
    def has_teams(self) -> bool:
        """Whether each thread that steps has threads of its own for it, until it leaves, that others' suffer from."""

    def leave(self) -> None:
        """The calling thread will not step soon: another does, perhaps right now."""


class RoseService:
    """Owns the queue, the engine thread and the completer.

    Every request that `submit` accepts is answered exactly once, through its `reply`, also when a step fails
    and when the service closes.

    Args:
        engine: used by one thread at a time: the engine thread, or one that `submit_all` lets launch.
        packer: decides what shares a batch.
        limits: what requests are checked against.
        metrics: told of every batch and answer.
        config: bounds of the queue.
        publish: told, under the queue's lock, whenever that changes: what waits, how many of its tokens are bulk, and
            the tokens a second of the last batches.
        bulk_packers: the same for bulk work; None: `packer` does that too.
    """

    def __init__(
        self,
        engine: Engine,
        packer: TokenPacker,
        limits: Limits,
        metrics: MetricsSink,
        config: QueueConfig = _DEFAULTS,
        publish: Callable[[Depth, int, float], None] = lambda _depth, _bulk, _rate: None,
        *,
        bulk_packers: BulkPackers | None = None,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._metrics = metrics
        self._publish = publish
        self._queue = LanedQueue(config, packer, bulk=bulk_packers)
        self._pacer = Pacer()
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)
        self._packed = threading.Condition(lock)
        self._finished = threading.Condition(lock)
        self._loan = EngineLoan(lock)
        self._closing = False
        self._hungry = False  # whether the engine thread waits for work
        self._told = Depth(0, 0)
        self._completer = Completer(metrics, self._batch_finished)
        self._engine_thread = threading.Thread(target=self._launch_batches, name="rose-engine")
        self._engine_thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its `reply` is called later from another thread.

        Raises:
            InvalidArgumentError: the request breaks a limit; `reply` will not be called.
            UnavailableError: the queue is full, or the service is closing; `reply` will not be called.
        """
        [error] = self.submit_all([request])
        if error is not None:
            raise error

    def submit_all(self, requests: Sequence[Request], *, launch: bool = False) -> list[RoseError | None]:
        """Queue requests that came together, so that they can share a batch; one error or none for each.

        Args:
            requests: to be queued.
            launch: whether the calling thread may launch them if the engine is idle and they are few tokens: to wake
                the engine thread takes longer. Where values are there when a step returns, as on a CPU, this returns
                after that step, and `reply` may have been called from the calling thread. Not to be offered by a
                `reply`: where a step fails, launching may wait for batches to be answered.
        """
        outcomes: list[RoseError | None] = [self._limits.fault(request) for request in requests]
        with self._arrived:
            for index, request in enumerate(requests):
                if outcomes[index] is None:
                    outcomes[index] = self._enqueue(request)
            batch = self._borrow() if launch else None
            passed_on = launch and batch is None and None in outcomes
            if batch is None:
                self._arrived.notify()
                if not self._handed_over():
                    self._tell()
        if batch is not None:
            self._launch_borrowed(batch)
        elif passed_on:
            self._leave()
        for outcome in outcomes:
            if outcome is not None:
                self._metrics.refused(outcome)
        return outcomes

    def _borrow(self) -> Batch | None:
        """Take the engine and the batch that its thread would be woken for, if that is a small one."""
        waiting, under_way = self._queue.depth(), self._pacer.num_under_way
        if not self._loan.may_be_had(waiting, under_way, has_teams=self._engine.has_teams):
            return None
        batch = self._queue.take()
        self._pass_on_dropped()
        if batch is not None:
            self._loan.give()
            self._packed.notify_all()
            if self._queue.depth() != self._told:
                self._tell()
        return batch

    def _launch_borrowed(self, batch: Batch) -> None:
        try:
            self._launch(batch, borrowed=True)
        except BaseException as cause:  # an interrupt of this thread, say; the engine goes on without it
            error = EngineError(f"the step was broken off: {cause!r}")
            for segment in batch.segments:  # some may have their answer: they will not get another
                self._completer.drop(Dropped(segment.request, error, Outcome.FAILED))
            raise
        finally:
            with self._arrived:
                self._loan.take_back()
                self._arrived.notify()  # there may be more; if not, the engine thread is to know that it is not quiet

    def _handed_over(self) -> bool:
        """Let an engine thread that waits for work take it first, and tell what is left; whether it did.

        Whoever called may keep the interpreter for a while on its way back (Triton's stub does, until its server has
        noticed), and the engine would wait for that.
        """
        return self._hungry and self._queue.depth().requests > 0 and self._packed.wait(_HAND_OVER_SECONDS)

    def depth(self, lane: Lane | None = None) -> Depth:
        """What waits in a lane, or in both, not yet in any batch."""
        with self._arrived:
            return self._queue.depth(lane)

    @property
    def bulk_budget(self) -> int:
        """Most tokens of the next batch of bulk work."""
        with self._arrived:
            return self._queue.bulk_budget

    def wait_for_progress(self, timeout: float) -> None:
        """Block until a batch left the queue, or for `timeout` seconds."""
        with self._packed:
            self._packed.wait(timeout)

    def close(self) -> None:
        """Refuse new requests, answer those accepted, stop both threads."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._engine_thread.join()
        self._completer.close()

    def _tell(self) -> None:
        self._told = self._queue.depth()
        self._publish(self._told, self._queue.depth(Lane.BULK).tokens, self._pacer.tokens_per_second)

    def _enqueue(self, request: Request) -> RoseError | None:
        if self._closing:
            return UnavailableError("the server is shutting down")
        try:
            self._queue.add(request, self._pacer.tokens_per_second)
        except UnavailableError as error:
            return error.as_value()
        return None

    def _launch_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._launch(batch)

    def _next_batch(self) -> Batch | None:
        """Wait for work; None once the service is closing and the queue is empty."""
        idling = True
        while True:
            with self._arrived:
                self._loan.in_use = False
                while self._loan.out or self._pacer.num_under_way >= _BATCHES_IN_FLIGHT:
                    self._loan.wait_until_returned()
                    self._wait_for_room()
                hold = 0.0 if self._closing else self._pacer.hold(time.monotonic())
                batch, leaves = None if hold else self._queue.take(), False
                dropped = self._pass_on_dropped()
                if batch is not None:
                    self._loan.clear_was_out()
                if batch is not None or dropped:
                    self._packed.notify_all()
                    self._tell()  # before the step, which may take seconds: till then others would refuse by the old
                elif self._closing:
                    return None
                elif hold:
                    self._finished.wait(hold)
                    continue
                elif self._loan.clear_was_out():
                    leaves = True
                elif self._wait_for_work(_QUIET_SECONDS if idling else None):
                    idling = True
                    continue
                self._loan.in_use = batch is not None or not (leaves or dropped)
            if batch is not None:
                return batch
            if leaves:
                self._leave()
            elif not dropped:
                idling = self._idle()

    def _pass_on_dropped(self) -> bool:
        """Have those answered that left the queue unpacked; whether there are any."""
        dropped = self._queue.take_dropped()
        for item in dropped:
            self._completer.drop(item)
        return bool(dropped)

    def _wait_for_room(self) -> None:
        while self._pacer.num_under_way >= _BATCHES_IN_FLIGHT:
            self._finished.wait()

    def _wait_for_work(self, timeout: float | None) -> bool:
        self._tell()  # the rest of a request that failed leaves the queue with no batch
        self._hungry = True
        came = self._arrived.wait(timeout)
        self._hungry = False
        return came or self._loan.out

    def _batch_finished(self, since_last: float | None) -> Ended:
        with self._arrived:
            end = self._pacer.finished(time.monotonic(), since_last)
            self._finished.notify_all()
        return end

    def _leave(self) -> None:
        try:
            self._engine.leave()
        except Exception:
            # Steps may take longer now; whoever waits for one must not be left without.
            logger.exception("the engine could not be left")

    def _idle(self) -> bool:
        try:
            return self._engine.idle()
        except Exception:
            # Work nobody asked for must not end the thread that answers everybody.
            logger.exception("idle work failed")
            return False

    def _launch(self, batch: Batch, *, borrowed: bool = False) -> None:
        with self._arrived:
            self._wait_for_room()  # a failed batch may have become many
            self._pacer.launched(batch.num_tokens, time.monotonic())
        try:
            rows = self._engine.step(batch, self._let_in if self._may_be_interrupted(batch, borrowed) else None)
        except Exception as cause:  # noqa: BLE001 - whatever a step raises, its requests get an answer
            with self._arrived:
                self._pacer.failed()
            self._isolate(batch, cause, self._launch)
        except BaseException:
            with self._arrived:
                self._pacer.failed()
            raise
        else:
            if self._may_complete(batch, rows, borrowed):
                self._completer.complete_here(batch, rows)
            else:
                self._completer.complete(batch, rows)

    @staticmethod
    def _may_be_interrupted(batch: Batch, borrowed: bool) -> bool:
        """Whether what comes online need not wait for the end of a batch."""
        return batch.segments[0].request.lane is Lane.BULK and not borrowed

    def _let_in(self) -> None:
        """Between two layers of a bulk batch: run the next batch of the online lane, if it is its turn."""
        with self._arrived:
            batch = self._queue.take_online()
            if self._pass_on_dropped() or batch is not None:
                self._packed.notify_all()
                self._tell()
        if batch is not None:
            self._run_inside(batch)

    def _run_inside(self, batch: Batch) -> None:
        """Run a batch inside another's step, and answer it."""
        began = time.monotonic()
        try:
            rows = self._engine.step(batch)
        except Exception as cause:  # noqa: BLE001 - as in `_launch`; the other batch has no part in it
            with self._arrived:
                self._pacer.stood_still(time.monotonic() - began)
            self._isolate(batch, cause, self._run_inside)
            return
        with self._arrived:
            end = self._pacer.finished_inside(batch.num_tokens, began, time.monotonic())
        if batch.segments[0].first:  # see `_may_complete`
            self._completer.complete(batch, rows, end)
        else:
            self._completer.complete_here(batch, rows, end)

    def _may_complete(self, batch: Batch, rows: Rows, borrowed: bool) -> bool:
        """Whether nothing is lost if this thread answers itself: to wake another for that takes a while."""
        # Of a request that began in another batch, the completer may be putting that part in its place right now.
        if not rows.at_once or batch.segments[0].first:
            return False
        if borrowed:  # the engine was idle, and its own thread goes on with what has come meanwhile
            return True
        with self._arrived:
            return self._pacer.num_under_way == 1 and not self._queue.depth().requests

    def _isolate(self, batch: Batch, cause: Exception, launch: Callable[[Batch], None]) -> None:
        """A step failed: launch its requests one by one, so that only the one at fault fails."""
        logger.warning("step failed", extra={"sequences": batch.num_sequences, "cause": repr(cause)})
        if len(batch.segments) == 1:
            request = batch.segments[0].request
            self._completer.drop(Dropped(request, EngineError(f"the step failed: {cause!r}"), Outcome.FAILED))
            return
        for segment in batch.segments:
            launch(Batch.of((segment,)))
