"""The completer alone decides answers, and outlives whatever a step hands it. Steps are made up: no model runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from rose_backend.admission import Limits
from rose_backend.core import FLOAT, Batch, Float32Array, Request, Results
from rose_backend.errors import EngineError, RoseError
from rose_backend.metrics import NullMetrics
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService, Rows


class MadeUp:
    """A step's rows: whatever it is told to return."""

    copy_seconds = 0.0
    padding = 0
    replayed = False
    at_once = False

    def __init__(self, rows: Callable[[], Float32Array]) -> None:
        self._rows = rows

    def results(self) -> Results:
        return {FLOAT: self._rows()}


class MadeUpEngine:
    """Calls `step` with each batch."""

    def __init__(self, step: Callable[[Batch], Rows]) -> None:
        self.step = step

    def idle(self) -> bool:
        return False


def _run(step: Callable[[Batch], Rows], *ids: list[int], max_sequences: int = 8) -> list[tuple[str, object]]:
    """Thread and outcome of every reply, for requests of one-token sequences."""
    replies: list[tuple[str, object]] = []

    def reply(outcome: Results | RoseError) -> None:
        content = outcome if isinstance(outcome, RoseError) else outcome[FLOAT]
        replies.append((threading.current_thread().name, content))

    service = RoseService(MadeUpEngine(step), TokenPacker(64, max_sequences), Limits(100, 8), NullMetrics())
    for sequence in ids:
        service.submit(Request(np.array(sequence, np.int32), np.ones(len(sequence), np.int32), reply))
    service.close()
    return replies


def _echo(batch: Batch) -> Rows:
    return MadeUp(lambda: batch.input_ids[:, None].astype(np.float32))


def test_rows_go_back_to_their_ids() -> None:
    replies = _run(_echo, [5, 6, 7], [8], max_sequences=2)
    assert sorted(outcome.tolist() for _, outcome in replies) == [[[5], [6], [7]], [[8]]]


def test_a_failed_step_is_answered_by_the_completer() -> None:
    """The engine thread never replies: two threads that decide could both find a request unanswered."""

    def fails(batch: Batch) -> Rows:
        raise RuntimeError("out of memory")

    [(thread, outcome)] = _run(fails, [5])
    assert thread.startswith(("rose-completer", "rose-answers"))
    assert isinstance(outcome, EngineError)
    assert "out of memory" in str(outcome)


def test_parts_that_fail_in_both_places_are_one_reply() -> None:
    def lost() -> Float32Array:
        raise RuntimeError("lost")

    def step(batch: Batch) -> Rows:
        if 6 in batch.input_ids:
            raise RuntimeError("refused")
        return MadeUp(lost)

    replies = _run(step, [5, 6, 5, 6, 5], max_sequences=1)
    assert len(replies) == 1
    assert isinstance(replies[0][1], EngineError)


def test_rows_of_a_wrong_number_fail_their_batch_alone() -> None:
    def step(batch: Batch) -> Rows:
        return MadeUp(lambda: np.zeros((3, 1), np.float32)) if 6 in batch.input_ids else _echo(batch)

    replies = _run(step, [6, 6], [7], max_sequences=2)
    assert len(replies) == 2
    [error] = [outcome for _, outcome in replies if isinstance(outcome, RoseError)]
    [rows] = [outcome for _, outcome in replies if isinstance(outcome, np.ndarray)]
    assert isinstance(error, EngineError)
    assert rows.tolist() == [[7]]


def test_a_slow_receiver_holds_up_neither_the_others_nor_the_next_batch() -> None:
    """The first of four replies of a batch waits for the last request of all, which is in another batch."""
    last_answered = threading.Event()
    slow_done: list[bool] = []

    def slow(_: Float32Array | RoseError) -> None:
        slow_done.append(last_answered.wait(30))

    def last(_: Float32Array | RoseError) -> None:
        last_answered.set()

    service = RoseService(MadeUpEngine(_echo), TokenPacker(64, 4), Limits(100, 8), NullMetrics())
    one = np.ones(1, np.int32)
    replies = [slow, lambda _: None, lambda _: None, lambda _: None, last]
    service.submit_all([Request(one, one, reply) for reply in replies])
    service.close()
    assert slow_done == [True]


def test_a_wait_for_the_device_ends_with_the_batch() -> None:
    """Two slow batches teach that the third takes long, and the fourth should wait for it; it is quick."""
    quick = threading.Event()

    def rows(batch: Batch) -> Float32Array:
        if not quick.is_set():
            time.sleep(0.6)
        return batch.input_ids[:, None].astype(np.float32)

    service = RoseService(
        MadeUpEngine(lambda batch: MadeUp(lambda: rows(batch))), TokenPacker(4, 1), Limits(100, 8), NullMetrics()
    )

    def seconds_for(count: int) -> float:
        answered = threading.Semaphore(0)
        began = time.monotonic()
        four, one = np.ones(4, np.int32), np.array([4], np.int32)
        service.submit_all([Request(four, one, lambda _: answered.release()) for _ in range(count)])
        for _ in range(count):
            assert answered.acquire(timeout=30)
        return time.monotonic() - began

    assert seconds_for(2) >= 1.2
    quick.set()
    assert seconds_for(2) < 0.4  # held to the end, it would be more than half a second
    service.close()
