"""Lazy capture: a bucket runs eagerly once, is recorded on its second hit and replayed after.

This file decides; how a bucket is run, recorded and replayed is the device's business (`cuda_runner.py`), so that
the decisions are tested without one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from rose_backend.buckets import Bucket

logger = logging.getLogger(__name__)


class Recording(Protocol):
    """A captured forward pass."""

    @property
    def num_bytes(self) -> int:
        """Device memory it holds beyond what other recordings share with it."""

    def close(self) -> None:
        """Free it. The device must have finished its last replay."""


R = TypeVar("R", bound=Recording)


@dataclass
class GraphCounters:
    """What the cache has done so far."""

    eager: int = 0
    captures: int = 0
    replays: int = 0
    evictions: int = 0
    num_bytes: int = 0
    """Device memory of the recordings there are now."""


@dataclass
class GraphCache(Generic[R]):
    """Recordings by bucket, least recently used first, within a memory budget.

    Attributes:
        capture: records a bucket; called with the device ready for it.
        budget: bytes all recordings may hold together; the last one always stays.
        largest: buckets of more tokens always run eagerly: there the launches no longer show. Changed once measured.
        counters: for metrics and tests.
    """

    capture: Callable[[Bucket], R]
    budget: int
    largest: int
    counters: GraphCounters = field(default_factory=GraphCounters)
    _recordings: OrderedDict[Bucket, R] = field(default_factory=OrderedDict, init=False)
    _hits: dict[Bucket, int] = field(default_factory=dict, init=False)

    def find(self, bucket: Bucket) -> R | None:
        """The recording to replay, made now if this is the bucket's second hit; None: run eagerly."""
        recording = self._recordings.get(bucket)
        if recording is not None:
            self._recordings.move_to_end(bucket)
            self.counters.replays += 1
            return recording
        hits = self._hits[bucket] = self._hits.get(bucket, 0) + 1
        if bucket.num_tokens > self.largest or hits < 2:
            self.counters.eager += 1
            return None
        self.counters.replays += 1
        return self._record(bucket)

    def recorded(self, bucket: Bucket) -> R | None:
        """A bucket's recording, if there is one; not a hit."""
        return self._recordings.get(bucket)

    def warm(self, buckets: Iterable[Bucket]) -> None:
        """Record buckets ahead of their first hit, e.g. those that were hot before a restart."""
        for bucket in buckets:
            if bucket not in self._recordings and bucket.num_tokens <= self.largest:
                self._record(bucket)

    @property
    def buckets(self) -> list[Bucket]:
        """Recorded buckets, most recently used last."""
        return list(self._recordings)

    def reset(self) -> None:
        """Free every recording and count from zero again."""
        while self._recordings:
            self._recordings.popitem()[1].close()
        self._hits.clear()
        self.counters = GraphCounters()

    def _record(self, bucket: Bucket) -> R:
        recording = self.capture(bucket)
        self.counters.captures += 1
        self.counters.num_bytes += recording.num_bytes
        self._recordings[bucket] = recording
        while self.counters.num_bytes > self.budget and len(self._recordings) > 1:
            evicted, old = self._recordings.popitem(last=False)
            old.close()
            self._hits.pop(evicted, None)
            self.counters.evictions += 1
            self.counters.num_bytes -= old.num_bytes
            logger.info("graph evicted", extra={"bucket": evicted, "bytes": old.num_bytes})
        return recording
