"""The completer alone decides answers, and outlives whatever a step hands it. Steps are made up: no model runs."""

from __future__ import annotations

import threading
import time
import weakref
from collections import UserDict
from collections.abc import Callable, ItemsView

import numpy as np

from rose_backend.admission import Limits
from rose_backend.completer import Rows
from rose_backend.config import QueueConfig
from rose_backend.core import FLOAT, Batch, Float32Array, Int32Array, Lane, Output, Request, Results
from rose_backend.errors import EngineError, RoseError
from rose_backend.lanes import Depth
from rose_backend.metrics import BatchReport, NullMetrics
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from tests.support.waiting import wait_until


class MadeUp:
    """A step's rows: whatever it is told to return."""

    copy_seconds = 0.0
    padding = 0
    replayed = False

    def __init__(self, rows: Callable[[], Float32Array], *, at_once: bool = False) -> None:
        self._rows = rows
        self.at_once = at_once

    def seconds_since(self, previous: Rows) -> float:
        assert not self.at_once
        return 1.0

    def results(self) -> Results:
        return {FLOAT: self._rows()}


class MadeUpEngine:
    """Calls `step` with each batch."""

    has_teams = False

    def __init__(self, step: Callable[[Batch], Rows]) -> None:
        self._step = step

    def step(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> Rows:
        return self._step(batch)

    def leave(self) -> None:
        pass

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


def test_rows_of_a_wrong_number_fail_a_lone_sequence() -> None:
    [(_, outcome)] = _run(lambda _: MadeUp(lambda: np.zeros((2, 1), np.float32)), [5])
    assert isinstance(outcome, EngineError)


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


def test_sending_thousands_of_vectors_does_not_hold_up_who_comes_then() -> None:
    begun, answered = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def slow(_: object) -> None:
        begun.set()
        in_time.append(answered.wait(30))

    def step(batch: Batch) -> Rows:
        return MadeUp(lambda: np.ones((batch.num_sequences, 64), np.float32))

    service = RoseService(MadeUpEngine(step), TokenPacker(4096, 4096), Limits(100, 4096), NullMetrics())
    many, one = np.ones(2000, np.int32), np.ones(1, np.int32)
    service.submit(Request(many, many, slow))
    assert begun.wait(30)
    service.submit(Request(one, one, lambda _: answered.set()))
    service.close()
    assert in_time == [True]


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


def test_parts_of_a_request_are_put_together_by_one_thread() -> None:
    """The second part is there at once, while the completer is putting the first in its place."""
    threads: list[str] = []
    first_looked_at = threading.Event()

    class Seen(UserDict[Output, Float32Array]):
        def items(self) -> ItemsView[Output, Float32Array]:
            threads.append(threading.current_thread().name)
            first_looked_at.set()
            return super().items()

    class AtOnce(MadeUp):
        def results(self) -> Results:
            return Seen(super().results())

    def step(batch: Batch) -> Rows:
        assert 6 not in batch.input_ids or first_looked_at.wait(30)
        return AtOnce(lambda: batch.input_ids[:, None].astype(np.float32), at_once=True)

    [(_, rows)] = _run(step, [5, 6], max_sequences=1)
    assert isinstance(rows, np.ndarray)
    assert rows.tolist() == [[5], [6]]
    assert set(threads) == {"rose-completer"}


def test_what_became_of_a_failed_batch_is_not_launched_all_at_once() -> None:
    """Each batch under way holds memory of the device and page-locked memory."""
    go, lock = threading.Event(), threading.Lock()
    under_way = most = 0

    def rows(batch: Batch) -> Float32Array:
        nonlocal under_way
        assert go.wait(30)
        with lock:
            under_way -= 1
        return batch.input_ids[:, None].astype(np.float32)

    def step(batch: Batch) -> Rows:
        nonlocal under_way, most
        if len(batch.segments) > 1:
            raise RuntimeError("one of them is at fault")
        with lock:
            under_way += 1
            most = max(most, under_way)
        if under_way == 3:
            go.set()
        return MadeUp(lambda: rows(batch))

    replies = _run(step, *([number] for number in range(20)), max_sequences=20)
    assert sorted(outcome.tolist() for _, outcome in replies if isinstance(outcome, np.ndarray)) == [
        [[number]] for number in range(20)
    ]
    assert most <= 4  # three, and one that the completer is about to hand out


class Clocked(MadeUp):
    """Ends when told, by the device's clock so many seconds after the batch before it."""

    def __init__(self, batch: Batch, seconds: float | None) -> None:
        super().__init__(lambda: batch.input_ids[:, None].astype(np.float32))
        self.ends = threading.Event()
        self.seconds = seconds
        self.asked: list[Rows] = []

    def seconds_since(self, previous: Rows) -> float:
        self.asked.append(previous)
        assert self.seconds is not None
        return self.seconds

    def results(self) -> Results:
        assert self.ends.wait(30)
        if self.seconds is None:
            raise RuntimeError("device lost")
        return super().results()


class Reports(NullMetrics):
    """Seconds of each batch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def batch_done(self, report: BatchReport) -> None:
        self.seconds.append(report.seconds)


def test_how_long_a_batch_took_is_asked_of_the_device() -> None:
    """However late an end is noticed; but not from the end of one that was lost, or that nothing came behind."""
    steps: list[Clocked] = []
    seconds = iter([9.0, 0.01, None, 9.0, 0.02, 9.0])

    def step(batch: Batch) -> Rows:
        steps.append(Clocked(batch, next(seconds)))
        return steps[-1]

    reports = Reports()
    service = RoseService(MadeUpEngine(step), TokenPacker(1, 1), Limits(100, 8), reports)
    one = np.ones(1, np.int32)

    def launch(count: int) -> None:
        before = len(steps)
        for number in range(count):
            service.submit(Request(one, one, lambda _: None))
            wait_until(lambda upto=before + number + 1: len(steps) == upto, "it is launched")

    def end(first: int, last: int) -> None:
        for number in range(first, last):
            time.sleep(0.05)
            steps[number].ends.set()
            counted = sum(clocked.seconds is not None for clocked in steps[: number + 1])
            wait_until(lambda counted=counted: len(reports.seconds) == counted, "it is counted")

    try:
        launch(3)
        end(0, 2)
        launch(2)
        end(2, 5)
        launch(1)
        end(5, 6)
    finally:
        for clocked in steps:
            clocked.ends.set()
        service.close()
    assert [clocked.asked for clocked in steps] == [[], [steps[0]], [], [], [steps[3]], []]
    assert [seconds for seconds in reports.seconds if seconds < 0.04] == [0.01, 0.02]


def test_room_is_told_before_the_step_that_made_it_ends() -> None:
    """Others refuse by what was told; a step may take seconds, and what waits may leave without one."""
    told: list[Depth] = []
    steps, entered = [threading.Event(), threading.Event()], threading.Semaphore(0)
    turns = iter(steps)

    def step(batch: Batch) -> Rows:
        entered.release()
        assert next(turns).wait(30)
        return MadeUp(lambda: batch.input_ids[:, None].astype(np.float32), at_once=True)

    service = RoseService(
        MadeUpEngine(step), TokenPacker(64, 8), Limits(100, 8), NullMetrics(), QueueConfig(100, 2),
        lambda depth, _bulk, _rate: told.append(depth),
    )  # fmt: skip
    one = np.ones(1, np.int32)

    def submit(deadline: float | None) -> None:
        service.submit_all([Request(one, one, lambda _: None, deadline=deadline) for _ in range(2)])

    try:
        submit(None)
        assert entered.acquire(timeout=30)
        submit(None)
        assert told[-1] == Depth(2, 2)
        steps[0].set()
        assert entered.acquire(timeout=30)
        assert told[-1] == Depth(0, 0)
        submit(time.monotonic())
        assert told[-1] == Depth(2, 2)
        steps[1].set()
        wait_until(lambda: told[-1] == Depth(0, 0), "the board says that there is room", 10)
    finally:
        for event in steps:
            event.set()
        service.close()


def test_room_is_told_when_the_rest_of_a_failed_request_leaves() -> None:
    """The first of two parts fails and is answered while a step of another holds the second back."""
    told: list[Depth] = []
    answered = threading.Event()

    def step(batch: Batch) -> Rows:
        if 6 in batch.input_ids:
            raise RuntimeError("refused")
        assert answered.wait(30)
        return _echo(batch)

    service = RoseService(
        MadeUpEngine(step), TokenPacker(64, 1), Limits(100, 8), NullMetrics(),
        publish=lambda depth, _bulk, _rate: told.append(depth),
    )  # fmt: skip
    one, two = np.ones(1, np.int32), np.ones(2, np.int32)
    lanes = (Lane.ONLINE, Lane.BULK)  # they take turns
    try:
        service.submit_all(
            [
                Request(np.array([6, 6], np.int32), two, lambda _: answered.set(), lane=lanes[0]),
                Request(one, one, lambda _: None, lane=lanes[1]),
            ]
        )
        wait_until(lambda: answered.is_set() and service.depth() == Depth(0, 0), "all is taken", 10)
        wait_until(lambda: told[-1] == Depth(0, 0), "the board says that there is room", 10)
    finally:
        service.close()


def test_answers_that_were_sent_are_not_kept() -> None:
    """A thread that waits for more to send would hold on to the vectors of the last for as long as nobody comes."""
    sent = threading.Semaphore(0)
    service = RoseService(MadeUpEngine(_echo), TokenPacker(64, 8), Limits(100, 8), NullMetrics())

    def submit(count: int) -> list[weakref.ref[Int32Array]]:
        ids = [np.ones(1, np.int32) for _ in range(count)]
        service.submit_all([Request(row, np.ones(1, np.int32), lambda _: sent.release()) for row in ids])
        for _ in ids:
            assert sent.acquire(timeout=30)
        return [weakref.ref(row) for row in ids]

    try:
        kept = submit(8)
        submit(1)  # the engine thread and the completer may keep their last batch
        wait_until(lambda: not any(row() is not None for row in kept), "what was answered is free", 10)
    finally:
        service.close()
