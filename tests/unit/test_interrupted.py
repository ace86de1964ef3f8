"""Between two layers of a batch of bulk work on a CPU, what came online meanwhile is run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rose_backend.admission import Limits
from rose_backend.config import QueueConfig
from rose_backend.core import FLOAT, Batch, Lane, Request, Results
from rose_backend.errors import EngineError, RoseError, UnavailableError
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.metrics import BatchReport, NullMetrics
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.unit.builders import request_of
from tests.unit.engines import embed, engine_on, sequences
from tests.unit.tiny_models import KINDS, NUM_LAYERS, VOCAB, tiny_model


def batch_of(ids: list[list[int]]) -> Batch:
    batch = TokenPacker(10_000, 1_000).take(deque([request_of(ids, normalize=False)]))
    assert batch is not None
    return batch


@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_inside_changes_neither(tmp_path: Path, kind: str) -> None:
    """Of every family: each layer can be interrupted, and what runs there leaves no trace."""
    tiny_model(kind).save_pretrained(tmp_path)
    engine = engine_on(tmp_path)
    outer, inner = sequences([5, 24, 3, 24, 11], VOCAB), [sequences([length, 2], VOCAB) for length in (7, 24)]
    alone = [embed(engine, ids) for ids in (outer, *inner)]
    found: list[list[np.ndarray]] = []

    def between_layers() -> None:
        found.append([embed(engine, ids) for ids in inner])

    batch = batch_of(outer)
    rows = np.empty_like(alone[0])
    rows[batch.order] = engine.step(batch, between_layers).numpy()
    assert_close(rows, alone[0])
    assert len(found) == NUM_LAYERS
    for vectors in found:
        assert_close(vectors[0], alone[1])
        assert_close(vectors[1], alone[2])


class Layered:
    """Ids as vectors, after some layers; before each, `before` is called with the ids of the batch."""

    has_teams = False

    def __init__(self, num_layers: int, before: Callable[[list[int]], object]) -> None:
        self.num_layers = num_layers
        self.before = before
        self.begun: list[list[int]] = []
        self.wrong = -1  # a batch with this id fails

    def step(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> LazyTensor:
        ids = batch.input_ids.tolist()
        self.begun.append(ids)
        for _ in range(self.num_layers):
            self.before(ids)
            if between_layers is not None:
                between_layers()
        if self.wrong in ids:
            raise RuntimeError("a made-up fault")
        return LazyTensor(batch.input_ids[:, None].astype(np.float32))

    def leave(self) -> None:
        pass

    def idle(self) -> bool:
        return False


class Timed(NullMetrics):
    """Seconds of batches, by their first id."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}

    def batch_done(self, report: BatchReport) -> None:
        self.seconds[int(report.batch.input_ids[0])] = report.seconds


class Running:
    """A service over a made-up engine; `answers` has first ids and outcomes, in their order."""

    def __init__(self, engine: Layered, metrics: NullMetrics, max_sequences: int = 64) -> None:
        self.service = RoseService(engine, TokenPacker(64, max_sequences), Limits(100_000, 8), metrics, QueueConfig())
        self.answers: list[tuple[int, list[float] | RoseError]] = []
        self.num_submitted = 0

    def submit(self, *ids: int, lane: Lane | None = None, deadline: float | None = None) -> None:
        def reply(outcome: Results | RoseError) -> None:
            content = outcome if isinstance(outcome, RoseError) else outcome[FLOAT].ravel().tolist()
            self.answers.append((ids[0], content))

        self.num_submitted += 1
        ones = np.ones(len(ids), np.int32)
        self.service.submit(Request(np.array(ids, np.int32), ones, reply, lane=lane, deadline=deadline))


@contextmanager
def running(engine: Layered, metrics: NullMetrics | None = None, max_sequences: int = 64) -> Iterator[Running]:
    made = Running(engine, metrics or NullMetrics(), max_sequences)
    try:
        yield made
        wait_until(lambda: len(made.answers) == made.num_submitted, "all are answered")
    finally:
        made.service.close()


BULK = tuple(range(1000, 1064))  # one batch


def at_layer(number: int, do: Callable[[], object]) -> Callable[[list[int]], None]:
    """Do something once, when a bulk batch gets to a layer."""
    layers = iter(range(10_000))

    def before(ids: list[int]) -> None:
        if ids[0] >= BULK[0] and next(layers) == number:
            do()

    return before


def test_a_query_is_answered_inside_a_bulk_batch() -> None:
    answered_at: list[int] = []
    engine = Layered(6, lambda ids: ids[0] >= BULK[0] and answered_at.append(len(run.answers)))
    engine.before = both(engine.before, at_layer(2, lambda: run.submit(5, 6)))
    with running(engine) as run:
        run.submit(*BULK)
    assert engine.begun == [list(BULK), [5, 6]]
    assert answered_at == [0, 0, 0, 1, 1, 1]
    assert run.answers == [(5, [5, 6]), (1000, list(BULK))]


def both(first: Callable[[list[int]], object], second: Callable[[list[int]], object]) -> Callable[[list[int]], object]:
    return lambda ids: (first(ids), second(ids))


def test_online_work_has_no_more_than_its_turn() -> None:
    """Four small batches, or one large one, to each of bulk work, which never starves."""
    ids = iter(range(1, 1000))
    engine = Layered(6, lambda own: own[0] >= BULK[0] and run.submit(next(ids)))
    with running(engine) as run:
        run.submit(*BULK, *range(2000, 2064))
    kinds = ["bulk" if own[0] >= BULK[0] else "online" for own in engine.begun]
    assert kinds[:6] == ["bulk", *["online"] * 4, "bulk"]
    engine = Layered(6, at_layer(0, lambda: [run.submit(*range(first, first + 32)) for first in (1, 101)]))
    with running(engine, max_sequences=32) as run:
        run.submit(*range(1000, 1064))
    assert [own[0] for own in engine.begun] == [1000, 1, 1032, 101]


def test_online_batches_are_not_interrupted() -> None:
    """First come, first served within the lane."""
    begun: list[list[list[int]]] = []
    engine = Layered(3, lambda _: begun.append(list(engine.begun)))
    engine.before = both(engine.before, lambda _: len(begun) == 1 and run.submit(2))
    with running(engine) as run:
        run.submit(1, 3, 4)
    assert begun == [[[1, 3, 4]]] * 3 + [[[1, 3, 4], [2]]] * 3


def test_a_fault_inside_costs_its_sender_alone() -> None:
    engine = Layered(4, at_layer(1, lambda: submit_together(run, [5], [7], [6])))
    engine.wrong = 7
    with running(engine) as run:
        run.submit(*BULK)
    outcomes = dict(run.answers)
    assert isinstance(outcomes.pop(7), EngineError)
    assert outcomes == {5: [5], 6: [6], 1000: list(BULK)}
    assert len(run.answers) == 4


def submit_together(run: Running, *requests: Sequence[int]) -> None:
    for ids in requests:
        run.submit(*ids)


def test_a_fault_around_it_costs_nobody_inside() -> None:
    engine = Layered(4, at_layer(1, lambda: run.submit(5)))
    engine.wrong = BULK[0]
    with running(engine) as run:
        run.submit(*BULK)
    assert run.answers[0] == (5, [5])
    assert isinstance(run.answers[1][1], EngineError)
    assert len(run.answers) == 2


def test_a_request_whose_parts_are_inside_several_batches() -> None:
    """Forty sequences in the online lane, eight to a batch, each of which is a turn of its own."""
    wanted = list(range(1, 41))
    engine = Layered(3, at_layer(1, lambda: run.submit(*wanted, lane=Lane.ONLINE)))
    with running(engine, max_sequences=8) as run:
        run.submit(*BULK)
    assert sorted(run.answers) == [(1, wanted), (1000, list(BULK))]


def test_what_expired_is_not_run_inside() -> None:
    engine = Layered(3, at_layer(0, lambda: run.submit(5, deadline=time.monotonic() - 1)))
    with running(engine) as run:
        run.submit(*BULK)
    assert engine.begun == [list(BULK)]
    assert isinstance(dict(run.answers)[5], UnavailableError)


def test_each_batch_is_told_its_own_time() -> None:
    """A bulk batch of four layers of 20 ms, with a query of as many inside."""
    metrics = Timed()
    engine = Layered(4, both(lambda _: time.sleep(0.02), at_layer(1, lambda: run.submit(5))))
    with running(engine, metrics) as run:
        began = time.monotonic()
        run.submit(*BULK)
        wait_until(lambda: len(metrics.seconds) == 2, "both are told")
        took = time.monotonic() - began
    assert metrics.seconds[5] >= 0.08
    assert metrics.seconds[1000] >= 0.08
    assert sum(metrics.seconds.values()) <= took


def test_many_threads_and_each_answer_once() -> None:
    """Queries of any size from four threads, while bulk work runs; every request has its own ids back, once."""
    engine = Layered(3, lambda _: time.sleep(0.0002))
    with running(engine, max_sequences=16) as run:

        def send(first: int) -> None:
            for start in range(first, first + 4000, 40):
                run.submit(*range(start, start + 1 + start % 32))

        threads = [threading.Thread(target=send, args=(number * 10_000,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for start in range(50_000, 54_000, 100):
            run.submit(*range(start, start + 100))
        for thread in threads:
            thread.join()
    assert len(run.answers) == 440
    for first, content in run.answers:
        count = 100 if first >= 50_000 else 1 + first % 32
        assert content == list(range(first, first + count))
    assert len({first for first, _ in run.answers}) == 440
