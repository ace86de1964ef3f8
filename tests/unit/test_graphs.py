"""When a bucket is run eagerly, recorded, replayed and evicted; recordings here are made up."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Timer

import pytest

from rose_backend.buckets import Bucket
from rose_backend.graphs import GraphCache, GraphCounters

A, B, C = (Bucket(tokens, 1, 32) for tokens in (16, 32, 64))
WIDE = Bucket(16, 8, 32)  # neither holds nor is held by B


class FakeRecording:
    """Holds as many bytes as its bucket has tokens."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.num_bytes = bucket.num_tokens
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Capture:
    """Keeps every recording it made."""

    def __init__(self) -> None:
        self.made: list[FakeRecording] = []

    def __call__(self, bucket: Bucket) -> Future[FakeRecording]:
        self.made.append(FakeRecording(bucket))
        return done(self.made[-1])


class SlowCapture:
    """Makes recordings when it is told to."""

    def __init__(self) -> None:
        self.begun: dict[Bucket, Future[FakeRecording]] = {}

    def __call__(self, bucket: Bucket) -> Future[FakeRecording]:
        assert bucket not in self.begun
        self.begun[bucket] = Future()
        return self.begun[bucket]

    def finish(self, bucket: Bucket) -> FakeRecording:
        recording = FakeRecording(bucket)
        self.begun.pop(bucket).set_result(recording)
        return recording


def done(recording: FakeRecording) -> Future[FakeRecording]:
    future: Future[FakeRecording] = Future()
    future.set_result(recording)
    return future


@pytest.fixture
def capture() -> Capture:
    return Capture()


def cache_of(capture: Capture | SlowCapture, budget: int = 1000, largest: int = 1000) -> GraphCache[FakeRecording]:
    return GraphCache(capture, budget, largest)


def find(cache: GraphCache[FakeRecording], bucket: Bucket) -> FakeRecording | None:
    """What a batch of this bucket replays; it is padded to what the recording was made for."""
    padded_to, recording = cache.find(bucket)
    assert padded_to == (bucket if recording is None else recording.bucket)
    return recording


def test_eager_then_recorded_then_replayed(capture: Capture) -> None:
    cache = cache_of(capture)
    assert find(cache, A) is None
    assert capture.made == []
    recording = find(cache, A)
    assert recording is not None
    assert recording.bucket == A
    assert find(cache, A) is recording
    assert find(cache, A) is recording
    assert len(capture.made) == 1
    assert cache.counters == GraphCounters(eager=1, captures=1, replays=3, evictions=0, num_bytes=16)
    assert cache.counters.num_bytes == 16


def test_hits_are_counted_for_each_bucket(capture: Capture) -> None:
    cache = cache_of(capture)
    assert [find(cache, bucket) for bucket in (A, B, C)] == [None] * 3
    assert find(cache, B) is not None
    assert cache.buckets == [B]


def test_the_least_recently_used_goes_first(capture: Capture) -> None:
    cache = cache_of(capture, budget=16 + 64)
    for bucket in (A, A, B, B):
        find(cache, bucket)
    find(cache, A)  # now B is the older one
    find(cache, C)
    find(cache, C)
    a, b, c = capture.made
    assert (a.closed, b.closed, c.closed) == (0, 1, 0)
    assert cache.buckets == [A, C]
    assert cache.counters.num_bytes == 80
    assert cache.counters == GraphCounters(eager=3, captures=3, replays=4, evictions=1, num_bytes=80)


def test_as_many_go_as_the_budget_needs(capture: Capture) -> None:
    cache = cache_of(capture, budget=79)
    for bucket in (A, A, B, B, C, C):
        find(cache, bucket)
    assert [recording.closed for recording in capture.made] == [1, 1, 0]
    assert cache.counters.evictions == 2


def test_the_last_one_stays_though_it_is_over_the_budget(capture: Capture) -> None:
    cache = cache_of(capture, budget=1)
    for bucket in (A, A, C, C):
        assert find(cache, bucket) is None or capture.made[-1].bucket == bucket
    assert cache.buckets == [C]
    assert find(cache, C) is capture.made[-1]
    assert capture.made[-1].closed == 0


def test_an_evicted_bucket_starts_over(capture: Capture) -> None:
    cache = cache_of(capture, budget=1)
    for bucket in (B, B, WIDE, WIDE):
        find(cache, bucket)
    assert find(cache, B) is None
    assert find(cache, B) is capture.made[2]
    assert len(capture.made) == 3


@pytest.mark.parametrize("bucket", [A, Bucket(32, 4, 32), Bucket(64, 1, 32)], ids=str)
def test_a_larger_recording_serves_what_is_not_recorded(capture: Capture, bucket: Bucket) -> None:
    cache = cache_of(capture)
    cache.warm([Bucket(64, 4, 64)])
    assert [find(cache, bucket) for _ in range(3)] == capture.made * 3
    assert cache.counters == GraphCounters(captures=1, replays=3, covered=3, num_bytes=64)


@pytest.mark.parametrize("bucket", [Bucket(128, 4, 64), Bucket(64, 8, 64), Bucket(64, 4, 128)], ids=str)
def test_one_that_is_too_small_in_any_way_does_not(capture: Capture, bucket: Bucket) -> None:
    cache = cache_of(capture)
    cache.warm([Bucket(64, 4, 64)])
    assert find(cache, bucket) is None


def test_the_smallest_of_them_serves(capture: Capture) -> None:
    cache = cache_of(capture)
    cache.warm([Bucket(256, 1, 32), C, Bucket(128, 1, 32)])
    assert find(cache, B) is capture.made[1]


def test_recorded_when_padding_has_cost_as_much(capture: Capture) -> None:
    """Recording counts as 8 passes of the largest bucket: 8 x 64 tokens, lost 48 at a time."""
    cache = cache_of(capture, largest=64)
    cache.warm([C])
    assert [find(cache, A) for _ in range(10)] == [capture.made[0]] * 10
    assert len(capture.made) == 1
    assert find(cache, A) is capture.made[0]  # it is begun meanwhile
    recording = find(cache, A)
    assert recording is capture.made[1]
    assert recording.bucket == A
    assert cache.counters.covered == 11


def test_recorded_when_hit_often(capture: Capture) -> None:
    cache = cache_of(capture)
    cache.warm([C])
    assert [find(cache, B) for _ in range(63)] == [capture.made[0]] * 63
    assert len(capture.made) == 1
    assert find(cache, B) is capture.made[0]
    assert find(cache, B) is capture.made[1]


def test_what_is_hit_more_than_once_is_wanted(capture: Capture) -> None:
    cache = cache_of(capture)
    cache.warm([Bucket(128, 1, 32)])
    find(cache, A)
    assert cache.wanted() is None
    for bucket in (A, B, B, B, C, C):
        find(cache, bucket)
    order = []
    while (bucket := cache.wanted()) is not None:
        order.append(bucket)
        cache.warm([bucket])
    assert order == [B, C, A]
    assert [find(cache, bucket) for bucket in order] == capture.made[1:]


def test_buckets_over_the_largest_always_run_eagerly(capture: Capture) -> None:
    cache = cache_of(capture, largest=32)
    assert [find(cache, C) for _ in range(4)] == [None] * 4
    find(cache, B)
    assert find(cache, B) is not None
    assert cache.counters == GraphCounters(eager=5, captures=1, replays=1, evictions=0, num_bytes=32)


def test_zero_turns_capture_off(capture: Capture) -> None:
    cache = cache_of(capture, largest=0)
    cache.warm([A])
    assert [find(cache, A) for _ in range(3)] == [None] * 3
    assert capture.made == []


def test_warm_records_ahead_of_the_first_hit(capture: Capture) -> None:
    cache = cache_of(capture, largest=32)
    cache.warm([A, B, A, C])
    assert [recording.bucket for recording in capture.made] == [A, B]
    assert find(cache, A) is capture.made[0]
    assert cache.counters == GraphCounters(eager=0, captures=2, replays=1, evictions=0, num_bytes=48)


def test_warm_keeps_within_the_budget(capture: Capture) -> None:
    cache = cache_of(capture, budget=48)
    cache.warm([A, B, C])
    assert cache.buckets == [C]
    assert [recording.closed for recording in capture.made] == [1, 1, 0]


def test_close_frees_each_once(capture: Capture) -> None:
    cache = cache_of(capture)
    cache.warm([A, B, C])
    cache.reset()
    cache.reset()
    assert [recording.closed for recording in capture.made] == [1, 1, 1]
    assert (cache.buckets, cache.counters.num_bytes) == ([], 0)


def test_a_capture_that_fails_leaves_the_cache_as_it_was(capture: Capture) -> None:
    def broken(bucket: Bucket) -> Future[FakeRecording]:
        raise RuntimeError("out of memory")

    cache: GraphCache[FakeRecording] = GraphCache(broken, 1000, 1000)
    with pytest.raises(RuntimeError, match="out of memory"):
        cache.warm([A])
    assert cache.buckets == []
    assert cache.counters == GraphCounters()


def test_a_bucket_that_cannot_be_recorded_is_served_eagerly() -> None:
    """Once is enough to try: a card whose memory is full must not cost every batch of that shape its answers."""
    tried = []

    def capture(bucket: Bucket) -> Future[FakeRecording]:
        tried.append(bucket)
        if bucket == A:
            raise MemoryError("the card is full")
        return done(FakeRecording(bucket))

    cache = GraphCache(capture, 1000, 1000)
    assert [find(cache, A) for _ in range(5)] == [None] * 5
    assert (cache.counters.eager, cache.counters.captures, cache.wanted()) == (5, 0, None)
    cache.warm([A, B])
    assert tried == [A, B]
    assert find(cache, A) is None  # although B would hold it
    with pytest.raises(MemoryError):
        GraphCache(capture, 1000, 1000).warm([A])  # who asks for a recording hears of it


def warm(cache: GraphCache[FakeRecording], capture: SlowCapture, bucket: Bucket) -> None:
    """As who asks for a recording does: waiting for it."""
    finished = Timer(0.1, lambda: capture.finish(bucket))
    finished.start()
    cache.warm([bucket])
    finished.join()


def hit_often(cache: GraphCache[FakeRecording], bucket: Bucket) -> None:
    for _ in range(64):
        find(cache, bucket)


def test_a_covered_bucket_goes_on_while_it_is_recorded() -> None:
    """Nobody waits for the recording: the larger one is replayed until it is there."""
    capture = SlowCapture()
    cache = cache_of(capture)
    warm(cache, capture, C)
    hit_often(cache, B)
    assert set(capture.begun) == {B}
    for _ in range(300):
        recording = find(cache, B)
        assert recording is not None
        assert recording.bucket == C
    assert set(capture.begun) == {B}  # begun once
    assert cache.counters == GraphCounters(captures=1, replays=364, covered=364, num_bytes=64)
    made = capture.finish(B)
    assert find(cache, B) is made
    assert (cache.counters.captures, cache.counters.covered, cache.wanted()) == (2, 364, None)


def test_one_is_recorded_beside_the_batches_at_a_time() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    warm(cache, capture, C)
    hit_often(cache, A)
    hit_often(cache, B)
    assert set(capture.begun) == {A}
    capture.finish(A)
    find(cache, B)
    assert set(capture.begun) == {B}
    assert set(cache.buckets) == {C, A}


def test_what_must_be_recorded_now_waits_for_the_one_under_way() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    warm(cache, capture, C)
    hit_often(cache, B)
    warm(cache, capture, B)
    assert set(cache.buckets) == {C, B}
    assert capture.begun == {}


def test_a_failure_beside_the_batches_costs_none_of_them() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    warm(cache, capture, C)
    hit_often(cache, B)
    capture.begun.pop(B).set_exception(MemoryError("the card is full"))
    recording = find(cache, A)
    assert recording is not None
    assert recording.bucket == C
    assert find(cache, B) is None  # eagerly from now on
    assert cache.buckets == [C]
    assert capture.begun == {}


def test_a_recording_under_way_is_freed_with_the_others() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    warm(cache, capture, C)
    hit_often(cache, B)
    begun = capture.begun[B]
    Timer(0.1, lambda: capture.finish(B)).start()
    cache.reset()
    assert begun.result().closed == 1
    assert cache.buckets == []


def test_begun_where_nobody_waits() -> None:
    capture = SlowCapture()
    cache = cache_of(capture, largest=32)
    for bucket in (C, A, A, B):  # C is too large, and B comes while A is recorded
        cache.begin(bucket)
    assert set(capture.begun) == {A}
    assert cache.recording
    made = capture.finish(A)
    assert not cache.recording
    assert cache.buckets == [A]
    cache.begin(A)
    assert capture.begun == {}
    assert find(cache, A) is made
    assert cache.counters == GraphCounters(captures=1, replays=1, num_bytes=16)


def test_a_batch_that_needs_what_is_under_way_waits_for_it() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    assert find(cache, A) is None
    cache.begin(A)
    finished = Timer(0.1, lambda: capture.finish(A))
    finished.start()
    assert find(cache, A) is None  # the first hit since: eagerly
    recording = find(cache, A)
    finished.join()
    assert recording is not None
    assert recording.bucket == A


def test_what_failed_beside_the_batches_is_not_wanted_again() -> None:
    """It was hit meanwhile; whoever records what is wanted would ask for it forever, and for nothing else."""
    capture = SlowCapture()
    cache = cache_of(capture)
    warm(cache, capture, C)
    hit_often(cache, B)
    for _ in range(3):
        find(cache, B)
    capture.begun.pop(B).set_exception(MemoryError("the card is full"))
    assert not cache.recording
    assert cache.wanted() is None


def test_what_fails_while_a_batch_waits_for_it_is_not_tried_again() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    find(cache, A)
    cache.begin(A)
    find(cache, A)  # the first hit since
    failing = Timer(0.1, lambda: capture.begun.pop(A).set_exception(MemoryError("the card is full")))
    failing.start()
    assert find(cache, A) is None
    failing.join()
    assert capture.begun == {}
    assert find(cache, A) is None
    assert (cache.counters.eager, cache.counters.captures) == (4, 0)


def test_who_asks_for_what_fails_meanwhile_does_not_try_again() -> None:
    capture = SlowCapture()
    cache = cache_of(capture)
    cache.begin(A)
    failing = Timer(0.1, lambda: capture.begun.pop(A).set_exception(MemoryError("the card is full")))
    failing.start()
    cache.warm([A])
    failing.join()
    assert (cache.buckets, cache.recorded(A)) == ([], None)
    assert capture.begun == {}
