"""Whoever brings a small batch to an idle engine launches it; two threads are never at the engine at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from rose_backend.admission import Limits
from rose_backend.config import QueueConfig
from rose_backend.core import FLOAT, Batch, Request, Results
from rose_backend.errors import EngineError, RoseError
from rose_backend.lanes import Depth
from rose_backend.metrics import NullMetrics
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from tests.support.waiting import wait_until


class EchoRows:
    """Token ids as vectors."""

    copy_seconds = 0.0
    padding = 0
    replayed = False

    def __init__(self, batch: Batch, computed: threading.Event, *, at_once: bool) -> None:
        self.at_once = at_once
        self.computed = computed
        self._rows = batch.input_ids[:, None].astype(np.float32)

    def seconds_since(self, previous: EchoRows) -> float:
        return 1.0

    def results(self) -> Results:
        assert self.computed.wait(30)
        return {FLOAT: self._rows}


class WatchedEngine:
    """Notes which thread ran what, and whether another was there at the time."""

    def __init__(self, *, at_once: bool = True, has_teams: bool = False) -> None:
        self.at_once = at_once
        self.has_teams = has_teams
        self.steps: list[tuple[str, list[int]]] = []
        self.idles = 0
        self.left: list[str] = []
        self.leave_seconds = 0.0
        self.clashes = 0
        self.wrong = -1  # a step with this id fails
        self.before: Callable[[], object] = lambda: None
        self.computed = threading.Event()  # what was launched
        self.computed.set()
        self._there = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._there.acquire(blocking=False):
            self.clashes += 1
            self._there.acquire()
        try:
            yield
        finally:
            self._there.release()

    def step(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> EchoRows:
        with self._alone():
            self.steps.append((threading.current_thread().name, batch.input_ids.tolist()))
            self.before()
            if self.wrong in batch.input_ids:
                raise RuntimeError("a made-up fault")
            return EchoRows(batch, self.computed, at_once=self.at_once)

    def leave(self) -> None:
        self.left.append(threading.current_thread().name)
        time.sleep(self.leave_seconds)

    def idle(self) -> bool:
        with self._alone():
            self.idles += 1
            time.sleep(0.001)
        return False


class Replies:
    """What requests were answered with, by their first id."""

    def __init__(self) -> None:
        self.found: dict[int, list[object]] = {}
        self.threads: list[str] = []

    def request(self, *ids: int, deadline: float | None = None) -> Request:
        def reply(outcome: Results | RoseError) -> None:
            self.threads.append(threading.current_thread().name)
            content = outcome if isinstance(outcome, RoseError) else outcome[FLOAT].ravel().tolist()
            self.found.setdefault(ids[0], []).append(content)

        return Request(np.array(ids, np.int32), np.ones(len(ids), np.int32), reply, deadline=deadline)


@contextmanager
def serving(engine: WatchedEngine, **settings: object) -> Iterator[RoseService]:
    limits = Limits(100_000, 8)
    service = RoseService(engine, TokenPacker(1024, 256), limits, NullMetrics(), QueueConfig(), **settings)  # type: ignore[arg-type]
    try:
        yield service
    finally:
        service.close()


def wait_until_idle(service: RoseService) -> None:
    wait_until(lambda: service._hungry and not service._loan.out, "the engine thread waits for work")


@pytest.mark.parametrize("at_once", [True, False])
def test_the_calling_thread_launches_what_it_brought(at_once: bool) -> None:
    engine, replies = WatchedEngine(at_once=at_once), Replies()
    me = threading.current_thread().name
    with serving(engine) as service:
        for turn in range(3):
            wait_until_idle(service)
            assert service.submit_all([replies.request(10 + turn, 3)], launch=True) == [None]
            assert engine.steps[-1] == (me, [10 + turn, 3])
            wait_until(lambda: len(replies.found) == turn + 1, "it is answered")  # noqa: B023
        wait_until_idle(service)
        assert service.submit_all([replies.request(20), replies.request(21)], launch=True) == [None] * 2
        assert engine.steps[-1] == (me, [20, 21])
    assert replies.found == {10: [[10, 3]], 11: [[11, 3]], 12: [[12, 3]], 20: [[20]], 21: [[21]]}
    assert (me in replies.threads) == at_once  # values that are there are sent by whoever has them


def test_a_slow_receiver_does_not_hold_up_the_others() -> None:
    """Each answer waits for its receipt, and the calling thread has more to bring."""
    engine = WatchedEngine()
    second_answered, waited = threading.Event(), list[bool]()
    one = np.ones(1, np.int32)
    with serving(engine) as service:
        wait_until_idle(service)
        service.submit_all(
            [
                Request(one, one, lambda _: waited.append(second_answered.wait(10))),
                Request(one, one, lambda _: second_answered.set()),
            ],
            launch=True,
        )
    assert [thread for thread, _ in engine.steps] == [threading.current_thread().name]
    assert waited == [True]


def test_nobody_launches_who_did_not_offer_to() -> None:
    engine, replies = WatchedEngine(), Replies()
    with serving(engine) as service:
        for number in range(3):
            wait_until_idle(service)
            service.submit(replies.request(number))
            wait_until_idle(service)
            service.submit_all([replies.request(10 + number)])
    assert {thread for thread, _ in engine.steps} == {"rose-engine"}


@pytest.mark.parametrize(("count", "here"), [(128, True), (129, False)])
def test_a_batch_that_takes_a_while_is_the_engine_threads(count: int, here: bool) -> None:
    engine, replies = WatchedEngine(), Replies()
    with serving(engine) as service:
        wait_until_idle(service)
        service.submit_all([replies.request(*range(count))], launch=True)
    [(thread, _)] = engine.steps
    assert thread == (threading.current_thread().name if here else "rose-engine")


def test_a_busy_engine_is_not_taken() -> None:
    engine, replies = WatchedEngine(), Replies()
    go = threading.Event()
    engine.before = lambda: go.wait(30)
    with serving(engine) as service:
        service.submit(replies.request(1))
        wait_until(lambda: len(engine.steps) == 1, "a step is under way")
        service.submit_all([replies.request(2)], launch=True)  # returns
        assert len(engine.steps) == 1
        go.set()
    assert [thread for thread, _ in engine.steps] == ["rose-engine"] * 2
    assert replies.found == {1: [[1]], 2: [[2]]}


def test_a_device_that_is_busy_is_left_to_the_engine_thread() -> None:
    """It knows when the batch there will be done, and lets others come until then."""
    engine, replies = WatchedEngine(at_once=False), Replies()
    with serving(engine) as service:
        wait_until_idle(service)
        engine.computed.clear()
        service.submit_all([replies.request(1)], launch=True)
        wait_until_idle(service)
        service.submit_all([replies.request(2)], launch=True)
        engine.computed.set()
    assert [thread for thread, _ in engine.steps] == [threading.current_thread().name, "rose-engine"]


def test_what_comes_meanwhile_waits_for_the_engine_and_is_served() -> None:
    engine, replies = WatchedEngine(), Replies()
    go = threading.Event()
    engine.before = lambda: go.wait(30)
    with serving(engine) as service:
        wait_until_idle(service)
        caller = threading.Thread(target=lambda: service.submit_all([replies.request(1)], launch=True))
        caller.start()
        wait_until(lambda: len(engine.steps) == 1, "the caller's step is under way")
        idles = engine.idles
        service.submit(replies.request(2))
        service.submit_all([replies.request(3)], launch=True)
        time.sleep(0.3)  # longer than the engine thread waits before it does anything else
        assert (len(engine.steps), engine.idles) == (1, idles)
        go.set()
        caller.join()
        wait_until(lambda: len(replies.found) == 3, "all are answered")
    assert engine.clashes == 0
    assert engine.steps[1] == ("rose-engine", [2, 3])
    assert replies.found == {1: [[1]], 2: [[2]], 3: [[3]]}


def test_a_fault_costs_the_one_that_has_it() -> None:
    engine, replies = WatchedEngine(), Replies()
    engine.wrong = 7
    with serving(engine) as service:
        wait_until_idle(service)
        service.submit_all([replies.request(6), replies.request(7), replies.request(8)], launch=True)
        wait_until(lambda: len(replies.found) == 3, "all are answered")
        wait_until_idle(service)
        service.submit_all([replies.request(9)], launch=True)
    assert [replies.found[number] for number in (6, 8, 9)] == [[[6]], [[8]], [[9]]]
    [error] = replies.found[7]
    assert isinstance(error, EngineError)
    assert "a made-up fault" in str(error)


def test_an_end_from_outside_gives_the_engine_back() -> None:
    """An interrupt, say, which is nobody's answer."""
    engine, replies = WatchedEngine(), Replies()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with serving(engine) as service:
        wait_until_idle(service)
        engine.before = interrupted
        for number in range(4):  # more than may be under way
            wait_until_idle(service)
            with pytest.raises(KeyboardInterrupt):
                service.submit_all([replies.request(number)], launch=True)
            wait_until(lambda: len(replies.found) == number + 1, "it is answered")  # noqa: B023
        engine.before = lambda: None
        service.submit(replies.request(4))
        wait_until(lambda: 4 in replies.found, "the engine thread goes on")
    assert replies.found.pop(4) == [[4]]
    assert all(isinstance(error, EngineError) for [error] in replies.found.values())


def test_an_end_from_outside_costs_those_that_have_no_answer_yet() -> None:
    """Each of a batch that failed is run again, alone; the second of them is broken off."""
    engine, replies = WatchedEngine(), Replies()
    engine.wrong = 9

    def interrupted() -> None:
        if engine.steps[-1][1] == [7]:
            raise KeyboardInterrupt

    engine.before = interrupted
    with serving(engine) as service:
        wait_until_idle(service)
        with pytest.raises(KeyboardInterrupt):
            service.submit_all([replies.request(number) for number in (6, 7, 8, 9)], launch=True)
        wait_until(lambda: len(replies.found) == 4, "all are answered")
    assert replies.found.pop(6) == [[6]]
    assert all(isinstance(error, EngineError) for [error] in replies.found.values())


def test_who_waits_for_progress_hears_of_a_batch_that_was_lent() -> None:
    engine, replies = WatchedEngine(), Replies()
    waiting = threading.Event()

    class Told(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout)

    with serving(engine) as service:
        service._packed = Told(service._arrived._lock)  # type: ignore[attr-defined]
        patient = threading.Thread(target=service.wait_for_progress, args=(60,))
        patient.start()
        assert waiting.wait(30)
        wait_until_idle(service)
        service.submit_all([replies.request(1)], launch=True)
        patient.join(30)
        assert not patient.is_alive()
        assert engine.steps == [(threading.current_thread().name, [1])]


def test_what_has_expired_is_answered_and_not_run() -> None:
    engine, replies = WatchedEngine(), Replies()
    told: list[Depth] = []
    with serving(engine, publish=lambda depth, _bulk, _rate: told.append(depth)) as service:
        wait_until_idle(service)
        late = replies.request(1, deadline=time.monotonic() - 1)
        service.submit_all([late, replies.request(2)], launch=True)
        wait_until(lambda: len(replies.found) == 2, "both are answered")
        wait_until_idle(service)
        service.submit_all([replies.request(3, deadline=time.monotonic() - 1)], launch=True)
        wait_until(lambda: len(replies.found) == 3, "it is answered")
        assert told[-1] == Depth(0, 0)
    assert [ids for _, ids in engine.steps] == [[2]]
    assert all(isinstance(replies.found[number][0], RoseError) for number in (1, 3))


def test_a_service_that_closes_waits_for_the_engine() -> None:
    engine, replies = WatchedEngine(), Replies()
    go = threading.Event()
    engine.before = lambda: go.wait(30)
    service = RoseService(engine, TokenPacker(64, 8), Limits(100, 8), NullMetrics())
    wait_until_idle(service)
    caller = threading.Thread(target=lambda: service.submit_all([replies.request(1)], launch=True))
    caller.start()
    wait_until(lambda: len(engine.steps) == 1, "the caller's step is under way")
    service.submit(replies.request(2))
    closer = threading.Thread(target=service.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    go.set()
    closer.join(30)
    caller.join(30)
    assert replies.found == {1: [[1]], 2: [[2]]}
    assert engine.clashes == 0


def test_work_for_idle_times_is_done_between_lone_requests_but_not_amid_them() -> None:
    engine, replies = WatchedEngine(), Replies()
    with serving(engine) as service:
        for turn in range(3):
            wait_until(lambda: engine.idles > turn, "a quiet while is made use of")  # noqa: B023
            wait_until_idle(service)
            idles = engine.idles
            ended = time.monotonic() + 0.4
            sent, longest = time.monotonic(), 0.0
            while sent < ended:
                service.submit_all([replies.request(turn)], launch=True)
                time.sleep(0.005)
                sent, last = time.monotonic(), sent
                longest = max(longest, sent - last)
            assert engine.idles == idles or longest > 0.05  # a machine that stood still was quiet
    assert engine.clashes == 0


def test_many_at_once_are_all_answered_once_and_nobody_clashes() -> None:
    engine, replies = WatchedEngine(), Replies()
    engine.wrong = 13
    rng = random.Random(3)
    delays = [rng.choice([0.0, 0.0, 0.0005, 0.002]) for _ in range(4_000)]

    def send(first: int, service: RoseService) -> None:
        for number in range(first, first + 300):
            if delays[number]:
                time.sleep(delays[number])
            ids = [number] * (1 if number % 7 else 200)
            if number % 3:
                service.submit_all([replies.request(*ids)], launch=True)
            else:
                service.submit(replies.request(*ids))

    with serving(engine) as service:
        threads = [threading.Thread(target=send, args=(300 * index, service)) for index in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert engine.clashes == 0
    assert sorted(replies.found) == list(range(1800))
    assert all(len(found) == 1 for found in replies.found.values())
    assert [number for number, [found] in replies.found.items() if isinstance(found, RoseError)] == [13]
    assert len({thread for thread, _ in engine.steps}) > 1


def test_who_does_not_step_leaves_the_engine() -> None:
    """On a CPU each has a team of threads, and two of them slow one another down."""
    engine, replies = WatchedEngine(), Replies()
    me = threading.current_thread().name
    with serving(engine) as service:
        wait_until_idle(service)
        service.submit_all([replies.request(1)], launch=True)
        wait_until(lambda: engine.left == ["rose-engine"], "the engine thread leaves, since another stepped")
        wait_until_idle(service)
        service.submit_all([replies.request(2)], launch=True)
        wait_until(lambda: engine.left == ["rose-engine"] * 2, "and again")
        wait_until_idle(service)
        large = list(range(10, 300))
        service.submit_all([replies.request(*large)], launch=True)  # too many tokens to be lent
        assert engine.left[2:] == [me]
        service.submit_all([replies.request(3)])  # no launch offered: not a thread that ever steps
        wait_until(lambda: len(replies.found) == 4, "all are answered")
        assert engine.left[3:] == []


def test_an_engine_thread_with_work_does_not_leave() -> None:
    engine, replies = WatchedEngine(), Replies()
    left_before: list[int] = []
    with serving(engine) as service:
        wait_until_idle(service)

        def meanwhile() -> None:
            left_before.append(len(engine.left))
            if len(left_before) == 1:
                service.submit(replies.request(2))

        engine.before = meanwhile
        service.submit_all([replies.request(1)], launch=True)
        wait_until(lambda: len(replies.found) == 2, "both are answered")
        assert [name for name, _ in engine.steps][1] == "rose-engine"
        assert left_before == [0, 0]
        wait_until(lambda: engine.idles >= 1, "the engine thread has nothing more to do")
        assert engine.left == []  # it was the last to step


def test_an_engine_with_teams_seldom_passes_between_threads() -> None:
    """It begins with the calling thread, which loaded it; whoever has it keeps it for a while."""
    engine, replies = WatchedEngine(has_teams=True), Replies()
    me = threading.current_thread().name
    large = list(range(1000, 1200))
    with serving(engine) as service:

        def ask(*ids: int) -> str:
            wait_until_idle(service)
            service.submit_all([replies.request(*ids)], launch=True)
            wait_until(lambda: ids[0] in replies.found, "it is answered")
            return engine.steps[-1][0]

        assert [ask(number) for number in range(1, 4)] == [me] * 3
        assert ask(*large) == "rose-engine"
        assert engine.left.count(me) == 1
        names = [ask(number) for number in range(10, 120)]
        assert names == ["rose-engine"] * 99 + [me] * 11
        wait_until(lambda: "rose-engine" in engine.left, "the engine thread leaves")
        assert engine.clashes == 0


def test_an_engine_without_teams_is_lent_at_once() -> None:
    engine, replies = WatchedEngine(), Replies()
    me = threading.current_thread().name
    with serving(engine) as service:
        for number, ids in enumerate(([1], list(range(1000, 1200)), [2])):
            wait_until_idle(service)
            service.submit_all([replies.request(*ids)], launch=True)
            wait_until(lambda: len(replies.found) == number + 1, "it is answered")  # noqa: B023
        assert [name for name, _ in engine.steps] == [me, "rose-engine", me]


@pytest.mark.parametrize("has_teams", [True, False])
def test_an_engine_thread_that_is_only_awake_is_not_waited_for(has_teams: bool) -> None:
    """It is after each borrowed step, to look for more: whoever comes back at once may launch again."""
    engine, replies = WatchedEngine(has_teams=has_teams), Replies()
    engine.leave_seconds = 0.002
    me = threading.current_thread().name
    with serving(engine) as service:
        wait_until_idle(service)
        for number in range(1, 200):
            service.submit_all([replies.request(number)], launch=True)
            wait_until(lambda: number in replies.found, "it is answered")  # noqa: B023
    assert {name for name, _ in engine.steps} == {me}
    assert engine.clashes == 0
    assert me not in engine.left


def test_who_is_refused_passes_nothing_on() -> None:
    engine, replies = WatchedEngine(has_teams=True), Replies()
    with serving(engine) as service:
        wait_until_idle(service)
        [error] = service.submit_all([replies.request(200_000)], launch=True)  # beyond the vocabulary
        assert error is not None
        assert engine.left == []


def test_an_engine_that_cannot_be_left_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine, replies = WatchedEngine(), Replies()

    def fails() -> None:
        raise RuntimeError("a made-up fault")

    engine.leave = fails  # type: ignore[method-assign]
    with serving(engine) as service:
        for number, ids in enumerate(([1], list(range(1000, 1200)), [2])):
            wait_until_idle(service)
            assert service.submit_all([replies.request(*ids)], launch=True) == [None]
            wait_until(lambda: len(replies.found) == number + 1, "it is answered")  # noqa: B023
    assert "the engine could not be left" in caplog.text
