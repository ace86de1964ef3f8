"""Lanes by hand: who goes where, whose turn it is, what is refused and what leaves unpacked."""

from __future__ import annotations

import pytest

from rose_backend.config import QueueConfig
from rose_backend.core import Lane, Outcome, Request
from rose_backend.errors import UnavailableError
from rose_backend.lanes import BulkPackers, Depth, LanedQueue
from rose_backend.packer import TokenPacker
from tests.unit.builders import request_with_lengths

DEFAULTS = QueueConfig()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue_of(config: QueueConfig = DEFAULTS, budget: int = 8, clock: Clock | None = None) -> LanedQueue:
    return LanedQueue(config, TokenPacker(budget, 100), clock or Clock())


def request(*lengths: int, lane: Lane | None = None) -> Request:
    made = request_with_lengths(*lengths)
    made.arrived, made.lane = 0.0, lane
    return made


def served(queue: LanedQueue) -> list[list[Request]]:
    batches = []
    while (batch := queue.take()) is not None:
        batches.append([segment.request for segment in batch.segments])
    return batches


@pytest.mark.parametrize(
    ("made", "lane"),
    [
        (request(8), Lane.ONLINE),
        (request(5, 4), Lane.BULK),  # more than one batch
        (request(*[1] * 33), Lane.BULK),  # many sequences
        (request(1, lane=Lane.BULK), Lane.BULK),  # as the sender says
        (request(5, 4, lane=Lane.ONLINE), Lane.ONLINE),
    ],
)
def test_lane_by_size_or_wish(made: Request, lane: Lane) -> None:
    assert queue_of().add(made, 0.0) is lane


def test_lanes_take_turns_and_the_first_is_online() -> None:
    queue = queue_of()
    bulk, one, two, three = request(*[4] * 6), request(6), request(6), request(6)
    for made in (bulk, one, two, three):
        queue.add(made, 0.0)
    assert served(queue) == [[one], [bulk], [two], [bulk], [three], [bulk]]


def test_four_small_batches_are_one_turn() -> None:
    """Who comes while another's query runs does not wait for a bulk batch, too; and bulk work has half of the time."""
    queue = queue_of()
    queue.add(request(*[8] * 4), 0.0)
    sizes = []
    for length in (2, 1, 2, 2, 2, 2, 3, 2, 2):  # up to a quarter of 8 is small
        queue.add(request(length), 0.0)
        batch = queue.take()
        assert batch is not None
        sizes.append(batch.num_tokens)
    assert sizes == [2, 1, 2, 2, 8, 4, 8, 5, 8]  # two that waited for a bulk batch share one
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [2, 8]


def test_small_batches_do_not_save_up_turns() -> None:
    queue = queue_of()
    for _ in range(20):
        queue.add(request(1), 0.0)
        assert queue.take() is not None
    queue.add(request(*[8] * 2), 0.0)
    queue.add(request(1), 0.0)
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [8, 1, 8]


def test_a_lane_alone_has_every_turn() -> None:
    queue = queue_of()
    one, two = request(6), request(6)
    for made in (one, two):
        queue.add(made, 0.0)
    assert served(queue) == [[one], [two]]
    bulk = request(*[4] * 4)
    queue.add(bulk, 0.0)
    assert served(queue) == [[bulk], [bulk]]


def test_without_lanes_all_is_first_come_first_served() -> None:
    queue = queue_of(QueueConfig(lanes=False))
    bulk, one = request(*[4] * 3, lane=Lane.BULK), request(4)
    for made in (bulk, one):
        queue.add(made, 0.0)
    assert served(queue) == [[bulk], [bulk, one]]


BULK = BulkPackers(beside=TokenPacker(4, 100), alone=TokenPacker(16, 100))


def test_bulk_work_that_is_alone_is_packed_into_larger_batches() -> None:
    clock = Clock()
    queue = LanedQueue(
        DEFAULTS, TokenPacker(8, 100), clock, bulk=BulkPackers(TokenPacker(4, 100), TokenPacker(16, 100))
    )
    queue.add(request(*[4] * 8), 0.0)
    assert queue.bulk_budget == 16
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [16, 16]
    online = request(3)
    online.arrived = clock.now = 100.0
    queue.add(request(*[4] * 6), 0.0)
    queue.add(online, 0.0)
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [3, 4, 4, 4, 4, 4, 4]
    clock.now = 109.9  # somebody may ask again
    assert queue.bulk_budget == 4
    queue.add(request(*[4] * 4), 0.0)
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [4, 4, 4, 4]
    clock.now = 110.1
    queue.add(request(*[4] * 4), 0.0)
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [16]


def test_bulk_work_is_not_alone_while_an_online_request_waits() -> None:
    """However long it has waited: it came long ago, and what is left of it is still held up by every bulk batch."""
    clock = Clock()
    queue = LanedQueue(
        DEFAULTS, TokenPacker(8, 100), clock, bulk=BulkPackers(TokenPacker(4, 100), TokenPacker(16, 100))
    )
    queue.add(request(*[4] * 6, lane=Lane.ONLINE), 0.0)
    queue.add(request(*[4] * 6), 0.0)
    clock.now = 11.0
    assert [batch.num_tokens for batch in iter(queue.take, None)] == [8, 4, 8, 4, 8, 16]


def test_bulk_work_is_alone_beside_health_checks() -> None:
    """They come every few seconds, day and night."""
    clock = Clock()
    queue = LanedQueue(DEFAULTS, TokenPacker(8, 100), clock, bulk=BULK)
    for now in (100.0, 105.0, 110.0):
        check = request(3)
        check.arrived, check.probe = now, True
        clock.now = now
        queue.add(check, 0.0)
        queue.take()
        queue.add(request(*[4] * 4), 0.0)
        assert [batch.num_tokens for batch in iter(queue.take, None)] == [16]


def test_depth_counts_what_is_not_packed() -> None:
    queue = queue_of()
    queue.add(request(*[4] * 4), 0.0)
    queue.add(request(3), 0.0)
    assert queue.depth() == Depth(19, 2)
    assert (queue.depth(Lane.BULK), queue.depth(Lane.ONLINE)) == (Depth(16, 1), Depth(3, 1))
    queue.take()  # online
    queue.take()  # 8 of the bulk's 16
    assert queue.depth() == Depth(8, 1)
    queue.take()
    assert queue.depth() == Depth(0, 0)


def test_full_by_tokens_or_requests() -> None:
    queue = queue_of(QueueConfig(max_tokens=10, max_requests=2))
    queue.add(request(6), 0.0)
    with pytest.raises(UnavailableError, match=r"6 of 10 tokens and 1 of 2 requests wait$"):
        queue.add(request(5), 0.0)
    queue.add(request(4), 0.0)
    with pytest.raises(UnavailableError, match=r"retry after 50 ms$"):  # 5 tokens at 100 a second
        queue.add(request(1), 100.0)


def test_a_request_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    queue = queue_of(QueueConfig(max_tokens=10))
    queue.add(request(8, 8), 0.0)
    with pytest.raises(UnavailableError):
        queue.add(request(1), 0.0)


def test_expired_requests_leave_unpacked() -> None:
    clock = Clock()
    queue = queue_of(clock=clock)
    late, good = request(3), request(4)
    late.deadline, good.deadline = 2.0, 2.5
    for made in (late, good):
        queue.add(made, 0.0)
    clock.now = 2.25
    assert served(queue) == [[good]]
    [dropped] = queue.take_dropped()
    assert (dropped.request, dropped.outcome) == (late, Outcome.EXPIRED)
    assert "2250 ms after it came" in str(dropped.error)
    assert queue.take_dropped() == []
    assert queue.depth() == Depth(0, 0)


def test_cancelled_requests_leave_unpacked_if_they_waited() -> None:
    clock = Clock()
    queue = queue_of(clock=clock)
    gone, asked = request(3), []
    gone.is_cancelled = lambda: True
    fresh = request(4)
    fresh.arrived = 1.0
    fresh.is_cancelled = lambda: asked.append(fresh) is None
    for made in (gone, fresh):
        queue.add(made, 0.0)
    clock.now = 1.01
    assert served(queue) == [[fresh]]  # it hardly waited, so it was not even asked
    assert asked == []
    [dropped] = queue.take_dropped()
    assert (dropped.request, dropped.outcome) == (gone, Outcome.CANCELLED)


def test_a_sender_is_not_asked_for_every_batch() -> None:
    """Each time is a message to another process, for which everybody waits."""
    clock = Clock()
    queue, asked = queue_of(clock=clock), []
    large = request(*[8] * 100)
    large.is_cancelled = lambda: asked.append(clock.now) is not None
    queue.add(large, 0.0)
    while queue.take() is not None:
        clock.now = round(clock.now + 0.004, 3)
    assert asked == [0.052, 0.104, 0.156, 0.208, 0.26, 0.312, 0.364]


def test_a_request_whose_part_failed_leaves_without_another_answer() -> None:
    queue = queue_of()
    failed = request(*[4] * 4)
    queue.add(failed, 0.0)
    queue.take()
    failed.answered = True
    assert queue.take() is None
    assert queue.take_dropped() == []
    assert queue.depth() == Depth(0, 0)
