"""Waiting for launched batches, in their order, and answering their requests."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from rose_backend.answering import Answer, Answerers
from rose_backend.core import OF_TOKENS, Batch, Outcome, Request, Results, Segment
from rose_backend.errors import EngineError, RoseError
from rose_backend.lanes import Dropped
from rose_backend.metrics import BatchReport, MetricsSink, RequestReport
from rose_backend.pacing import Ended

logger = logging.getLogger(__name__)

_Rows = TypeVar("_Rows", bound="Rows")

_SOON_SENT = 1 << 18  # bytes of an answer; to send megabytes takes as long as a step of others


class Rows(Protocol):
    """What a step returns: see `LazyTensor`."""

    padding: int
    replayed: bool
    at_once: bool
    """Whether the values were there when the step returned."""

    @property
    def copy_seconds(self) -> float:
        """How long the copy to the host took; known once `results` has returned."""

    def seconds_since(self: _Rows, previous: _Rows) -> float:
        """From another step's end to this one's by the device's clock, both over; not asked where values are there."""

    def results(self) -> Results:
        """Wait for and return the batch's vectors, in batch order, in the forms that it wants."""


@dataclass(frozen=True)
class _Launched:
    """A batch on its way."""

    batch: Batch
    rows: Rows
    end: Ended | None


@dataclass(frozen=True)
class _Counts:
    """What the metrics are still to be told."""

    requests: list[RequestReport]
    batch: BatchReport | None


class Completer:
    """A thread that waits for the copies of one batch after another.

    Args:
        metrics: told of every batch and answer.
        finished: called when a batch's vectors are there, or lost, with the seconds by the device's clock since the
            batch before it ended, where those are known.
    """

    def __init__(self, metrics: MetricsSink, finished: Callable[[float | None], Ended]) -> None:
        self._metrics = metrics
        self._finished = finished
        self._before: Rows | None = None  # of the batch that ended last, while more are on their way
        self._items: queue.SimpleQueue[_Launched | Dropped | _Counts | None] = queue.SimpleQueue()
        self._answerers = Answerers()
        self._thread = threading.Thread(target=self._run, name="rose-completer")
        self._thread.start()

    def complete(self, batch: Batch, rows: Rows, end: Ended | None = None) -> None:
        """Have a launched batch's requests answered, once its vectors are there.

        Args:
            batch: whose requests.
            rows: what its step returned.
            end: of a batch that is known to be done; `finished` is not called for it.
        """
        self._items.put(_Launched(batch, rows, end))

    def complete_here(self, batch: Batch, rows: Rows, end: Ended | None = None) -> None:
        """Answer them from this thread, several from others: it has nothing else to do before."""
        # Others may wait for this thread, and nobody for the metrics.
        self._items.put(self._answer(batch, rows, end, most_here=1))

    def drop(self, item: Dropped) -> None:
        """Have a request answered with an error, unless it has its answer."""
        self._items.put(item)

    def close(self) -> None:
        """Answer what was handed over, and stop; nothing more may come."""
        self._items.put(None)
        self._thread.join()
        self._answerers.close()

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            most_here = 1 if self._items.empty() else 0
            if isinstance(item, Dropped):
                item = _Counts(self._deliver(self._settle(item.request, item.error), item.outcome, most_here), None)
            elif isinstance(item, _Launched):
                item = self._answer(item.batch, item.rows, item.end, most_here)
            if item.requests:
                self._metrics.requests_done(item.requests)
            if item.batch is not None:
                self._metrics.batch_done(item.batch)

    def _answer(self, batch: Batch, rows: Rows, end: Ended | None, most_here: int) -> _Counts:
        """Answer a batch's requests, up to a number of them from this thread."""
        try:
            if end is None:
                results, end = self._wait_for(rows)
            else:
                results = rows.results()
            report = BatchReport(batch, end.seconds, rows.copy_seconds, rows.padding, rows.replayed, end.began, end.at)
            answers = self._hand_out(batch, results)
        except Exception as cause:  # noqa: BLE001 - a device fault shows up here; its requests get an answer
            logger.warning("batch lost", extra={"sequences": batch.num_sequences, "cause": repr(cause)})
            error = EngineError(f"the device failed: {cause!r}")
            lost = [answer for segment in batch.segments for answer in self._settle(segment.request, error)]
            return _Counts(self._deliver(lost, Outcome.FAILED, most_here), None)
        return _Counts(self._deliver(answers, Outcome.SERVED, most_here), report)

    def _deliver(self, answers: list[Answer], outcome: Outcome, most_here: int) -> list[RequestReport]:
        """Send answers, if they are few and small from here, and say what there is to count."""
        now = time.monotonic()
        if len(answers) <= most_here and all(map(_is_small, answers)):
            for answer in answers:
                answer.send()
        else:
            self._answerers.deliver(answers)
        return [RequestReport(answer.request, outcome, now - answer.request.arrived) for answer in answers]

    def _wait_for(self, rows: Rows) -> tuple[Results, Ended]:
        before, self._before, since = self._before, None, None
        try:
            results = rows.results()
            if before is not None:
                since = rows.seconds_since(before)
        finally:
            end = self._finished(since)
        if end.num_under_way and not rows.at_once:
            self._before = rows
        return results, end

    def _hand_out(self, batch: Batch, vectors: Results) -> list[Answer]:
        """Put a batch's vectors back in the order of its segments; the answers of requests that are whole."""
        lone = batch.segments[0].request
        if len(batch.order) == 1 == lone.num_sequences and not batch.keeps_tokens:
            if any([len(values) != 1 for values in vectors.values()]):  # noqa: C419 (a list is quicker)
                raise ValueError("a step of one sequence returned another number of rows")
            return self._settle(lone, vectors)
        unsorted = {}
        for form, values in vectors.items():
            unsorted[form] = np.empty_like(values)
            unsorted[form][batch.token_order if form in OF_TOKENS else batch.order] = values
        of_tokens = OF_TOKENS.intersection(unsorted)
        first, first_token = 0, 0
        whole: list[tuple[Request, Results]] = []
        for segment in batch.segments:
            rows = segment.rows
            stop = first + rows.stop - rows.start
            results = {form: values[first:stop] for form, values in unsorted.items()}
            if of_tokens:
                stop_token = first_token + len(segment.input_ids)
                results |= {form: unsorted[form][first_token:stop_token] for form in of_tokens}
                first_token = stop_token
            gathered = self._add(segment, rows, results)
            if gathered is not None:
                whole.append((segment.request, gathered))
            first = stop
        # Only now: what is settled would not be told of an error that comes after it.
        return [answer for request, results in whole for answer in self._settle(request, results)]

    @staticmethod
    def _add(segment: Segment, rows: slice, results: Results) -> Results | None:
        """Put a part of a request to the others; the results of a request that is whole with it."""
        request = segment.request
        if segment.count == request.num_sequences:
            return results
        for form, values in results.items():
            if not request.outputs & form:  # what a batch mate wants
                continue
            of_tokens = form in OF_TOKENS
            if form not in request.results:
                count = request.num_tokens if of_tokens else request.num_rows
                request.results[form] = np.empty((count, *values.shape[1:]), values.dtype)
            request.results[form][segment.tokens if of_tokens else rows] = values
        request.num_done += segment.count
        return request.results if request.num_done == request.num_sequences else None

    @staticmethod
    def _settle(request: Request, content: Results | RoseError) -> list[Answer]:
        """Decide how a request ends; the one answer to send, or none if that was decided before."""
        if request.answered:
            return []
        request.answered = True
        return [Answer(request, content)]


def _is_small(answer: Answer) -> bool:
    content = answer.content
    return isinstance(content, RoseError) or sum(values.nbytes for values in content.values()) <= _SOON_SENT
