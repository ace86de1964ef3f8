"""When a bucket is run eagerly, recorded, replayed and evicted; recordings here are made up."""

from __future__ import annotations

import pytest

from rose_backend.buckets import Bucket
from rose_backend.graphs import GraphCache, GraphCounters

A, B, C = (Bucket(tokens, 1, 32) for tokens in (16, 32, 64))


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

    def __call__(self, bucket: Bucket) -> FakeRecording:
        self.made.append(FakeRecording(bucket))
        return self.made[-1]


@pytest.fixture
def capture() -> Capture:
    return Capture()


def cache_of(capture: Capture, budget: int = 1000, largest: int = 1000) -> GraphCache[FakeRecording]:
    return GraphCache(capture, budget, largest)


def test_eager_then_recorded_then_replayed(capture: Capture) -> None:
    cache = cache_of(capture)
    assert cache.find(A) is None
    assert capture.made == []
    recording = cache.find(A)
    assert recording is not None
    assert recording.bucket == A
    assert cache.find(A) is recording
    assert cache.find(A) is recording
    assert len(capture.made) == 1
    assert cache.counters == GraphCounters(eager=1, captures=1, replays=3, evictions=0, num_bytes=16)
    assert cache.counters.num_bytes == 16


def test_hits_are_counted_for_each_bucket(capture: Capture) -> None:
    cache = cache_of(capture)
    assert [cache.find(bucket) for bucket in (A, B, C)] == [None] * 3
    assert cache.find(B) is not None
    assert cache.buckets == [B]


def test_the_least_recently_used_goes_first(capture: Capture) -> None:
    cache = cache_of(capture, budget=16 + 64)
    for bucket in (A, A, B, B):
        cache.find(bucket)
    cache.find(A)  # now B is the older one
    cache.find(C)
    cache.find(C)
    a, b, c = capture.made
    assert (a.closed, b.closed, c.closed) == (0, 1, 0)
    assert cache.buckets == [A, C]
    assert cache.counters.num_bytes == 80
    assert cache.counters == GraphCounters(eager=3, captures=3, replays=4, evictions=1, num_bytes=80)


def test_as_many_go_as_the_budget_needs(capture: Capture) -> None:
    cache = cache_of(capture, budget=79)
    for bucket in (A, A, B, B, C, C):
        cache.find(bucket)
    assert [recording.closed for recording in capture.made] == [1, 1, 0]
    assert cache.counters.evictions == 2


def test_the_last_one_stays_though_it_is_over_the_budget(capture: Capture) -> None:
    cache = cache_of(capture, budget=1)
    for bucket in (A, A, C, C):
        assert cache.find(bucket) is None or capture.made[-1].bucket == bucket
    assert cache.buckets == [C]
    assert cache.find(C) is capture.made[-1]
    assert capture.made[-1].closed == 0


def test_an_evicted_bucket_starts_over(capture: Capture) -> None:
    cache = cache_of(capture, budget=1)
    for bucket in (A, A, B, B):
        cache.find(bucket)
    assert cache.find(A) is None
    assert cache.find(A) is capture.made[2]
    assert len(capture.made) == 3


def test_buckets_over_the_largest_always_run_eagerly(capture: Capture) -> None:
    cache = cache_of(capture, largest=32)
    assert [cache.find(C) for _ in range(4)] == [None] * 4
    cache.find(B)
    assert cache.find(B) is not None
    assert cache.counters == GraphCounters(eager=5, captures=1, replays=1, evictions=0, num_bytes=32)


def test_zero_turns_capture_off(capture: Capture) -> None:
    cache = cache_of(capture, largest=0)
    cache.warm([A])
    assert [cache.find(A) for _ in range(3)] == [None] * 3
    assert capture.made == []


def test_warm_records_ahead_of_the_first_hit(capture: Capture) -> None:
    cache = cache_of(capture, largest=32)
    cache.warm([A, B, A, C])
    assert [recording.bucket for recording in capture.made] == [A, B]
    assert cache.find(A) is capture.made[0]
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
    def broken(bucket: Bucket) -> FakeRecording:
        raise RuntimeError("out of memory")

    cache: GraphCache[FakeRecording] = GraphCache(broken, 1000, 1000)
    cache.find(A)
    with pytest.raises(RuntimeError, match="out of memory"):
        cache.find(A)
    assert cache.buckets == []
    assert cache.counters.captures == 0
