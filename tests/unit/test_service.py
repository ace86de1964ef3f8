"""The service over the real engine and real weights, with faults injected into chosen steps."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose_backend import service
from rose_backend.admission import Limits
from rose_backend.completer import Rows
from rose_backend.config import EngineConfig, QueueConfig
from rose_backend.core import Batch, Float32Array, Outcome, Output, Results
from rose_backend.engine import RoseEngine
from rose_backend.errors import EngineError, InvalidArgumentError, RoseError, UnavailableError
from rose_backend.lanes import Depth
from rose_backend.metrics import BatchReport, RequestReport
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from rose_ensemble.checkpoint import read_checkpoint
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.unit.builders import Answers, request_of

Alone = Callable[[list[int]], Float32Array]

DEFAULTS = QueueConfig()
POISON = 666
GOOD = [[101, 5572, 102], [101, 8962, 2003, 102], [101, 102], [101, 2023, 2003, 1037, 3231, 102]]


class LostRows:
    """A step's result on a device that failed meanwhile."""

    copy_seconds = 0.0
    padding = 0
    replayed = False
    at_once = False

    def seconds_since(self, previous: Rows) -> float:
        raise AssertionError("it never ended")

    def results(self) -> Results:
        raise RuntimeError("device lost")


class FaultyEngine:
    """The real engine, held back until told to go; steps fail as `fault` says.

    Args:
        engine: does the work.
        fault: called with each batch before it runs; may raise, or return rows to use instead.
    """

    def __init__(self, engine: RoseEngine, fault: Callable[[Batch], Rows | None]) -> None:
        self._engine = engine
        self.fault = fault
        self.idle = engine.idle
        self.leave = engine.leave
        self.has_teams = engine.has_teams
        self.go = threading.Event()
        self.entered = threading.Event()
        self.batches: list[Batch] = []

    def step(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> Rows:
        self.entered.set()
        assert self.go.wait(30)
        self.batches.append(batch)
        return self.fault(batch) or self._engine.step(batch, between_layers)


class Recorder:
    """A metrics sink that keeps everything."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.reports: list[BatchReport] = []
        self.done: list[tuple[int, bool]] = []
        self.seconds: list[float] = []
        self.outcomes: list[Outcome] = []
        self.refusals: list[RoseError] = []

    def batch_done(self, report: BatchReport) -> None:
        self.batches.append(report.batch)
        self.reports.append(report)

    def requests_done(self, reports: Sequence[RequestReport]) -> None:
        for report in reports:
            self.done.append((report.request.num_sequences, report.outcome is not Outcome.SERVED))
            self.outcomes.append(report.outcome)
            self.seconds.append(report.seconds)

    def refused(self, error: RoseError) -> None:
        self.refusals.append(error)


class Running:
    """A service and what surrounds it; `hold` is a first request that keeps the engine busy while others queue."""

    def __init__(
        self, engine: RoseEngine, fault: Callable[[Batch], Rows | None], budget: int, most: int, config: QueueConfig
    ) -> None:
        self.engine = FaultyEngine(engine, fault)
        self.metrics = Recorder()
        limits = Limits(engine.vocab_size, engine.config.max_length)
        self.service = RoseService(self.engine, TokenPacker(budget, most), limits, self.metrics, config)
        self.hold = self.submit([[101, 102]])
        assert self.engine.entered.wait(30)

    def submit(self, sequences: list[list[int]], *, normalize: bool = True) -> Answers:
        answers = Answers()
        self.service.submit(request_of(sequences, answers, normalize=normalize))
        return answers


@pytest.fixture(scope="module")
def engine(minilm: Path) -> RoseEngine:
    checkpoint = read_checkpoint(minilm)
    return RoseEngine(EngineConfig(minilm, checkpoint.max_length, checkpoint.head))


@pytest.fixture(scope="module")
def alone(engine: RoseEngine) -> Alone:
    """A sequence's vector when it runs with no batch mate."""

    def run(sequence: list[int]) -> Float32Array:
        batch = TokenPacker(256, 1).take(deque([request_of([sequence])]))
        assert batch is not None
        return engine.step(batch).numpy()[0].copy()

    return run


def nothing_wrong(_: Batch) -> None:
    return None


@contextmanager
def running(
    engine: RoseEngine,
    fault: Callable[[Batch], Rows | None] = nothing_wrong,
    budget: int = 256,
    most: int = 64,
    config: QueueConfig = DEFAULTS,
) -> Iterator[Running]:
    """Yields with the engine held back; everything is answered and both threads are gone after it."""
    state = Running(engine, fault, budget, most, config)
    try:
        yield state
    finally:
        state.engine.go.set()
        state.service.close()


def fails_on_poison(batch: Batch) -> None:
    if POISON in batch.input_ids:
        raise RuntimeError("poisoned")


def test_batch_mates_get_what_they_get_alone(engine: RoseEngine, alone: Alone) -> None:
    with running(engine) as state:
        answers = [state.submit([sequence]) for sequence in GOOD]
        state.engine.go.set()
        for sequence, answer in zip(GOOD, answers, strict=True):
            assert_close(answer.vectors(), alone(sequence)[None])
    assert [batch.num_sequences for batch in state.engine.batches] == [1, len(GOOD)]


def test_only_the_poisoned_request_fails(engine: RoseEngine, alone: Alone) -> None:
    with running(engine, fails_on_poison) as state:
        answers = [state.submit([sequence]) for sequence in GOOD[:2]]
        poisoned = state.submit([GOOD[0], [101, POISON, 102]])
        answers += [state.submit([sequence]) for sequence in GOOD[2:]]
        state.engine.go.set()
        error = poisoned.wait()
        assert isinstance(error, EngineError)
        assert "poisoned" in str(error)
        for sequence, answer in zip(GOOD, answers, strict=True):
            assert_close(answer.vectors(), alone(sequence)[None])
    assert [len(answer.outcomes) for answer in (*answers, poisoned, state.hold)] == [1] * 6


def test_a_lost_batch_fails_its_own_requests_and_no_others(engine: RoseEngine, alone: Alone) -> None:
    def lose(batch: Batch) -> Rows | None:
        return LostRows() if POISON in batch.input_ids else None

    with running(engine, lose, most=2) as state:
        first = state.submit([GOOD[0]])
        mate = state.submit([GOOD[1]])  # first and mate share a batch, the next two another
        lost = state.submit([[101, POISON, 102]])
        lost_mate = state.submit([GOOD[2]])
        last = state.submit([GOOD[3]])
        state.engine.go.set()
        for answer in (lost, lost_mate):
            error = answer.wait()
            assert isinstance(error, EngineError)
            assert "device lost" in str(error)
        for sequence, answer in ((GOOD[0], first), (GOOD[1], mate), (GOOD[3], last)):
            assert_close(answer.vectors(), alone(sequence)[None])
    assert [len(answer.outcomes) for answer in (first, mate, lost, lost_mate, last)] == [1] * 5


def test_a_large_request_is_put_together_in_order(engine: RoseEngine, alone: Alone) -> None:
    sequences = [[101, *range(2000 + 7 * index, 2000 + 8 * index + 1), 102] for index in range(12)]
    sequences = sequences[::2] + sequences[::-2]
    with running(engine, budget=40, most=64) as state:
        large = state.submit(sequences)
        after = state.submit([GOOD[0]])
        state.engine.go.set()
        assert_close(large.vectors(), np.stack([alone(sequence) for sequence in sequences]))
        assert_close(after.vectors(), alone(GOOD[0])[None])
    assert len(state.engine.batches) > 3
    assert all(batch.num_tokens <= 40 for batch in state.engine.batches)
    assert len(large.outcomes) == 1


def test_a_large_request_of_which_a_part_fails_is_answered_once(engine: RoseEngine, alone: Alone) -> None:
    sequences = [GOOD[0]] * 3 + [[101, POISON, 102]] + [GOOD[0]] * 8
    with running(engine, fails_on_poison, most=2) as state:
        large = state.submit(sequences)
        after = state.submit([GOOD[3]])
        state.engine.go.set()
        assert isinstance(large.wait(), EngineError)
        assert_close(after.vectors(), alone(GOOD[3])[None])
    assert len(large.outcomes) == 1
    assert state.metrics.done.count((12, True)) == 1


def test_normalize_is_each_requests_own(engine: RoseEngine, alone: Alone) -> None:
    with running(engine) as state:
        unit = state.submit([GOOD[1]], normalize=True)
        raw = state.submit([GOOD[1]], normalize=False)
        state.engine.go.set()
        vector = raw.vectors()[0]
        assert np.linalg.norm(vector) > 1.1
        assert_close(unit.vectors()[0], vector / np.linalg.norm(vector))


def test_close_answers_what_was_accepted(engine: RoseEngine) -> None:
    with running(engine, most=1) as state:
        answers = [state.submit([sequence]) for sequence in GOOD * 3]
        closing = threading.Thread(target=state.service.close)
        closing.start()
        state.engine.go.set()
        closing.join(30)
        assert not closing.is_alive()
        assert [len(answer.outcomes) for answer in answers] == [1] * 12
        assert all(isinstance(answer.outcomes[0], dict) for answer in answers)


def test_submit_after_close_is_refused(engine: RoseEngine) -> None:
    with running(engine) as state:
        state.engine.go.set()
        state.service.close()
        answer = Answers()
        with pytest.raises(UnavailableError, match="shutting down"):
            state.service.submit(request_of([[101, 102]], answer))
    assert answer.outcomes == []


def test_a_request_over_the_limits_is_refused_at_once(engine: RoseEngine) -> None:
    with running(engine) as state:
        answer = Answers()
        with pytest.raises(InvalidArgumentError, match="30522"):
            state.service.submit(request_of([[30522]], answer))
    assert answer.outcomes == []


def test_nothing_keeps_a_request_that_was_refused(engine: RoseEngine) -> None:
    """Its memory is shared with the server, and is not to wait for the garbage collector."""
    gc.disable()
    try:
        with running(engine, config=QueueConfig(max_requests=1)) as state:
            requests = [request_of(sequences) for sequences in ([[30522]], GOOD[:1], GOOD[1:2])]
            replies = [weakref.ref(request.reply) for request in (requests[0], requests[2])]
            kinds = [type(error) for error in state.service.submit_all(requests)]
            assert kinds == [InvalidArgumentError, type(None), UnavailableError]
            del requests
            assert [reply() for reply in replies] == [None, None]
    finally:
        gc.enable()


def test_a_reply_that_raises_does_not_stop_the_service(engine: RoseEngine, alone: Alone) -> None:
    def broken(_: Float32Array | RoseError) -> None:
        raise ConnectionError("receiver is gone")

    with running(engine) as state:
        request = request_of([GOOD[0]])
        request.reply = broken
        state.service.submit(request)
        mate = state.submit([GOOD[1]])
        state.engine.go.set()
        assert_close(mate.vectors(), alone(GOOD[1])[None])
        assert_close(state.submit([GOOD[2]]).vectors(), alone(GOOD[2])[None])


def test_a_reply_that_raises_on_an_error_does_not_stop_the_engine_thread(engine: RoseEngine, alone: Alone) -> None:
    def broken(_: Float32Array | RoseError) -> None:
        raise ConnectionError("receiver is gone")

    with running(engine, fails_on_poison) as state:
        request = request_of([[101, POISON, 102]])
        request.reply = broken
        state.service.submit(request)
        state.engine.go.set()
        assert_close(state.submit([GOOD[2]]).vectors(), alone(GOOD[2])[None])


def test_metrics_see_batches_and_answers(engine: RoseEngine) -> None:
    with running(engine, fails_on_poison) as state:
        state.submit(GOOD[:3])
        state.submit([[101, POISON, 102], [101, 102]])
        state.engine.go.set()
    assert [batch.num_sequences for batch in state.metrics.batches] == [1, 3]  # the failed step never came back
    assert sorted(state.metrics.done) == [(1, False), (2, True), (3, False)]
    assert all(seconds >= 0 for seconds in state.metrics.seconds)


def test_expired_and_cancelled_requests_never_reach_the_engine(engine: RoseEngine) -> None:
    late, gone, good = request_of([GOOD[0]], Answers()), request_of([GOOD[1]], Answers()), request_of([GOOD[2]])
    late.deadline = time.monotonic() - 1.0
    gone.arrived, gone.is_cancelled = time.monotonic() - 1.0, lambda: True
    with running(engine) as state:
        for request in (late, gone, good):
            state.service.submit(request)
        state.engine.go.set()
        for request, part in ((late, "expired"), (gone, "cancelled")):
            assert isinstance(request.reply, Answers)
            error = request.reply.wait()
            assert isinstance(error, UnavailableError)
            assert part in str(error)
    assert [batch.num_sequences for batch in state.metrics.batches] == [1, 1]
    assert Counter(state.metrics.outcomes) == {Outcome.SERVED: 2, Outcome.EXPIRED: 1, Outcome.CANCELLED: 1}


def test_a_request_that_expires_half_way_is_dropped_and_answered_once(engine: RoseEngine) -> None:
    request = request_of([GOOD[0]] * 6, Answers())
    with running(engine, budget=len(GOOD[0]), most=1) as state:

        def expire(batch: Batch) -> None:
            if batch.segments[0].request is request and batch.segments[0].first == 2:
                request.deadline = time.monotonic() - 1.0

        state.engine.fault = expire
        state.service.submit(request)
        state.engine.go.set()
        assert isinstance(request.reply, Answers)
        assert isinstance(request.reply.wait(), UnavailableError)
    assert request.num_packed == 3
    assert len(request.reply.outcomes) == 1
    assert state.service.depth() == Depth(0, 0)


def test_a_full_queue_refuses_and_says_so(engine: RoseEngine) -> None:
    config = QueueConfig(max_tokens=2 * len(GOOD[0]), max_requests=3)
    with running(engine, config=config) as state:
        first, second = state.submit([GOOD[0]]), state.submit([GOOD[0]])
        with pytest.raises(UnavailableError, match=rf"{config.max_tokens} of {config.max_tokens} tokens and 2 of 3"):
            state.submit([GOOD[0]])
        state.engine.go.set()
        for answers in (first, second):
            answers.vectors()
        state.submit([GOOD[0]]).vectors()  # there is room again
    assert len(state.metrics.refusals) == 1


def test_a_small_request_overtakes_a_large_one(engine: RoseEngine) -> None:
    """One batch of the large request is packed when the small one comes; the small one is next."""
    large = request_of([GOOD[0]] * 40, Answers())
    with running(engine, budget=4 * len(GOOD[0]), most=4) as state:
        state.service.submit(large)
        small = state.submit([GOOD[1]])
        state.engine.go.set()
        small.vectors()
        assert isinstance(large.reply, Answers)
        assert large.reply.vectors().shape[0] == 40
    places = [index for index, batch in enumerate(state.metrics.batches) if batch.segments[0].request is not large]
    assert places[0] == 0  # what held the engine
    assert places[1] <= 2
    assert len(state.metrics.batches) == 12


def test_without_lanes_a_small_request_waits_its_turn(engine: RoseEngine) -> None:
    large = request_of([GOOD[0]] * 40, Answers())
    with running(engine, budget=4 * len(GOOD[0]), most=4, config=QueueConfig(lanes=False)) as state:
        state.service.submit(large)
        small = state.submit([GOOD[1]])
        state.engine.go.set()
        small.vectors()
    assert state.metrics.batches[-1].segments[-1].request is not large
    assert all(batch.segments[0].request is large for batch in state.metrics.batches[1:-1])


def test_many_submitters_each_get_their_own(engine: RoseEngine, alone: Alone) -> None:
    expected = [alone(sequence) for sequence in GOOD]
    with running(engine, budget=64, most=8) as state:
        state.engine.go.set()
        wrong: list[float] = []

        def submit_some(offset: int) -> None:
            for turn in range(25):
                index = (offset + turn) % len(GOOD)
                vectors = state.submit([GOOD[index]]).vectors()
                difference = float(np.abs(vectors[0] - expected[index]).max())
                if difference > 1e-5:
                    wrong.append(difference)

        threads = [threading.Thread(target=submit_some, args=(offset,)) for offset in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert state.metrics.done.count((1, False)) == 101


def test_idle_work_that_fails_ends_nothing(
    engine: RoseEngine, alone: Alone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Event()

    def idle() -> bool:
        tried.set()
        raise RuntimeError("out of memory")

    with running(engine, budget=64, most=8) as state:
        monkeypatch.setattr(state.engine, "idle", idle)
        state.engine.go.set()
        state.hold.vectors()
        assert tried.wait(30)
        assert_close(state.submit([GOOD[0]]).vectors()[0], alone(GOOD[0]))
    assert "idle work failed" in caplog.text


def test_a_sender_that_cannot_be_asked_does_not_stop_the_service(engine: RoseEngine, alone: Alone) -> None:
    def fails() -> bool:
        raise RuntimeError("no shared memory left")

    with running(engine) as state:
        silent = request_of([GOOD[0]], Answers())
        silent.arrived, silent.is_cancelled = time.monotonic() - 1.0, fails
        state.service.submit(silent)
        mate = state.submit([GOOD[1]])
        state.engine.go.set()
        assert_close(mate.vectors(), alone(GOOD[1])[None])
        assert isinstance(silent.reply, Answers)
        assert_close(silent.reply.vectors(), alone(GOOD[0])[None])


class NoRoom(dict[Output, Any]):
    """Where a request's vectors should be gathered, in a process without memory."""

    def __setitem__(self, form: Output, values: Any) -> None:
        raise MemoryError


def test_what_fails_after_a_batch_is_told_to_each_of_its_requests(engine: RoseEngine) -> None:
    """Also to one whose own vectors were there already."""
    with running(engine, budget=sum(map(len, GOOD)), most=3) as state:
        small = state.submit([GOOD[0]])
        large = request_of(GOOD, Answers())
        large.results = NoRoom()
        state.service.submit(large)
        state.engine.go.set()
        for answer in (small, large.reply):
            assert isinstance(answer, Answers)
            assert isinstance(answer.wait(), EngineError)
        after = state.submit([GOOD[1]])
        assert after.vectors().shape == (1, engine.dim)
    assert [len(answer.outcomes) for answer in (small, large.reply) if isinstance(answer, Answers)] == [1, 1]


def test_an_idle_engine_has_taken_what_was_submitted(engine: RoseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever submitted may keep the interpreter afterwards; the engine should not have to wait for that."""
    monkeypatch.setattr(service, "_HAND_OVER_SECONDS", 30.0)
    with running(engine) as state:
        state.engine.go.set()
        state.hold.vectors()
        for length in range(3, 9):
            wait_until(lambda: state.service._hungry, "the engine thread waits for work")
            request = request_of([[101] * length])
            state.service.submit(request)
            assert request.packed_at is not None


def test_a_busy_engine_is_not_waited_for(engine: RoseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_HAND_OVER_SECONDS", 30.0)
    with running(engine) as state:
        began = time.monotonic()
        waiting = state.submit([GOOD[0]])
        assert time.monotonic() - began < 15
        state.engine.go.set()
        waiting.vectors()


def test_what_waits_is_published_when_it_leaves(engine: RoseEngine) -> None:
    """By that tokenizing processes refuse: a queue that is empty must not look full, however long a step takes."""
    told: list[int] = []
    limits = Limits(engine.vocab_size, engine.config.max_length)
    slow = FaultyEngine(engine, nothing_wrong)
    packer = TokenPacker(1024, 512)
    served = RoseService(
        slow, packer, limits, Recorder(), publish=lambda depth, _bulk, _rate: told.append(depth.tokens)
    )
    try:
        served.submit(request_of([[101, 102]]))
        assert slow.entered.wait(30)
        several = [request_of([[101, 7, 102]]) for _ in range(3)]
        served.submit_all(several)
        assert told[-1] == 9
        slow.go.set()
        wait_until(lambda: all(request.answered for request in several), "they are answered")
        wait_until(lambda: told[-1] == 0, "nobody waits any more")
        slow.go.clear()
        slow.entered.clear()
        served.submit(request_of([[101, 102]]))
        assert slow.entered.wait(30)
        late = request_of([[101, 102]])
        late.deadline = time.monotonic() - 1.0
        served.submit(late)
        assert told[-1] == 2
        slow.go.set()
        wait_until(lambda: late.answered and told[-1] == 0, "what has expired waits no more")
    finally:
        slow.go.set()
        served.close()
