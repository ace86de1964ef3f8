"""Requests under way from one thread, of one call or of several."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic

import grpc

from rose_client.dispatch import Answer, Attempt, Call
from rose_client.errors import RequestError
from rose_client.exchange import Exchange


class Flight(Generic[Answer]):
    """Sends what calls are due to send and tells them what came of it; a context manager that cancels what is left.

    gRPC's futures instead of a pool of threads: they can be cancelled, and however many there are, gRPC watches them
    from one thread per server.

    Args:
        infer: the servers' method `ModelInfer`, by index.
        exchange: how chunks travel and their answers are read.
    """

    def __init__(self, infer: Sequence[grpc.UnaryUnaryMultiCallable], exchange: Exchange[Answer]) -> None:
        self._infer = infer
        self._exchange = exchange
        self._running: dict[Attempt, tuple[Call[Answer], Any]] = {}
        self._ended: queue.SimpleQueue[Attempt] = queue.SimpleQueue()

    def send(self, call: Call[Answer]) -> None:
        """Send the chunks of a call that are due.

        Raises:
            RequestError: the call's time is over.
        """
        for attempt in call.ready(time.monotonic()):
            sent = self._exchange.inference(attempt.chunk, attempt.seconds)
            future = self._infer[attempt.server].future(sent.request, timeout=sent.seconds, metadata=sent.metadata)
            self._running[attempt] = call, future
            future.add_done_callback(partial(self._report, attempt))

    def settle(self, seconds: float) -> None:
        """Wait for an outcome, no longer than so many seconds, and hand it to its call.

        Raises:
            RequestError: the call failed.
        """
        try:
            attempt = self._ended.get(timeout=seconds)
        except queue.Empty:
            return
        call, future = self._running.pop(attempt)
        outcome: Answer | RequestError
        try:
            outcome = self._exchange.read(future.result())
        except grpc.RpcError as cause:
            outcome = RequestError.of_call(cause)
        except RequestError as failure:
            outcome = failure
        call.settle(attempt, outcome, time.monotonic())

    def settle_ended(self) -> None:
        """Hand over every outcome that is there already.

        Raises:
            RequestError: a call failed.
        """
        while not self._ended.empty():
            self.settle(0)

    def __enter__(self) -> Flight[Answer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, future in self._running.values():
            future.cancel()

    def _report(self, attempt: Attempt, _: grpc.Future) -> None:
        self._ended.put(attempt)
