"""Requests under way from one thread, of one call or of several."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from rose_client.dispatch import Answer, Attempt, Call
from rose_client.errors import RequestError
from rose_client.exchange import Exchange


class Flight(Generic[Answer]):
    """Sends what calls are due to send and tells them what came of it; a context manager that cancels what is left.

    gRPC's futures instead of a pool of threads: they can be cancelled, and however many there are, gRPC watches them
    from one thread per server.

    Args:
        clients: of the servers, by index.
        exchange: how chunks travel and their answers are read.
    """

    def __init__(self, clients: Sequence[grpcclient.InferenceServerClient], exchange: Exchange[Answer]) -> None:
        self._clients = clients
        self._exchange = exchange
        self._running: dict[Attempt, tuple[Call[Answer], Any]] = {}
        self._ended: queue.SimpleQueue[tuple[Attempt, Any, InferenceServerException | None]] = queue.SimpleQueue()

    def send(self, call: Call[Answer]) -> None:
        """Send the chunks of a call that are due.

        Raises:
            RequestError: the call's time is over, or tritonclient refuses to send an option.
        """
        for attempt in call.ready(time.monotonic()):
            arguments = self._exchange.arguments(attempt.chunk, attempt.seconds)
            client = self._clients[attempt.server]
            try:
                request = client.async_infer(callback=partial(self._report, attempt), **arguments)
            except InferenceServerException as cause:
                raise RequestError.of(cause) from cause
            self._running[attempt] = call, request

    def settle(self, seconds: float) -> None:
        """Wait for an outcome, no longer than so many seconds, and hand it to its call.

        Raises:
            RequestError: the call failed.
        """
        try:
            attempt, result, error = self._ended.get(timeout=seconds)
        except queue.Empty:
            return
        call, _ = self._running.pop(attempt)
        outcome = self._exchange.read(result) if error is None else RequestError.of(error)
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
        for _, request in self._running.values():
            request.cancel()

    def _report(self, attempt: Attempt, result: Any, error: InferenceServerException | None) -> None:
        self._ended.put((attempt, result, error))
