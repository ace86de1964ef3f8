"""Lazy capture: a bucket runs eagerly once, is recorded on its second hit and replayed after.

Recording takes as long as several eager steps. So a bucket that fits into one that is recorded already is run as that
one, with a little more padding, and recorded once nobody waits, once its padding has cost several times what recording
does, or once it has been hit often. In the last two cases it goes on being run as the other one meanwhile.

This file decides; how a bucket is run, recorded and replayed is the device's business (`cuda_runner.py`), so that
the decisions are tested without one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field
from typing import Generic, Protocol, TypeVar

from rose_backend.buckets import Bucket

logger = logging.getLogger(__name__)

# A recording is two eager passes and the making of the graph, and an eager pass takes as long as the device needs for
# the largest bucket worth recording (that is how `largest` is measured): four of those. Padding costs the device, and a
# recording the host, from whose time all that wait lose some, so that it must be worth twice that.
_RECORDING_COST = 8
_OFTEN = 64  # hits after which a bucket is recorded whatever its padding: a smaller graph has shorter launches as well


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
    covered: int = 0
    """Of the replays, those of a larger bucket."""
    evictions: int = 0
    num_bytes: int = 0
    """Device memory of the recordings there are now."""

    def __add__(self, other: GraphCounters) -> GraphCounters:
        """The counts of two caches together."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return GraphCounters(*(one + another for one, another in pairs))


@dataclass
class _Unrecorded:
    """A bucket that is waiting for its recording."""

    hits: int = 0
    padding: int = 0
    """Tokens that were run for nothing in larger buckets."""


@dataclass
class GraphCache(Generic[R]):
    """Recordings by bucket, least recently used first, within a memory budget.

    Attributes:
        capture: begins to record a bucket.
        budget: bytes all recordings may hold together; the last one always stays.
        largest: buckets of more tokens always run eagerly: there the launches no longer show. 0: all do.
        counters: for metrics and tests.
    """

    capture: Callable[[Bucket], Future[R]]
    budget: int
    largest: int
    counters: GraphCounters = field(default_factory=GraphCounters)
    _recordings: OrderedDict[Bucket, R] = field(default_factory=OrderedDict, init=False)
    _unrecorded: dict[Bucket, _Unrecorded] = field(default_factory=dict, init=False)
    _failed: set[Bucket] = field(default_factory=set, init=False)
    _begun: tuple[Bucket, Future[R]] | None = field(default=None, init=False)

    def find(self, bucket: Bucket) -> tuple[Bucket, R | None]:
        """How to run a batch: the bucket to pad it to, and the recording to replay; None: run it eagerly.

        A bucket that could not be recorded, for want of memory perhaps, is run eagerly from then on.
        """
        self._collect(wait=False)
        if bucket in self._recordings:
            return bucket, self._replay(bucket)
        if bucket.num_tokens > self.largest or bucket in self._failed:
            self.counters.eager += 1
            return bucket, None
        waiting = self._unrecorded.setdefault(bucket, _Unrecorded())
        waiting.hits += 1
        cover = min((other for other in self._recordings if other.holds(bucket)), default=None)
        if cover is not None:
            waiting.padding += cover.num_tokens - bucket.num_tokens
            worth_it = waiting.padding >= _RECORDING_COST * self.largest or waiting.hits >= _OFTEN
            if worth_it and self._begun is None:
                self._begun = bucket, self._begin(bucket)
            self.counters.covered += 1
            return cover, self._replay(cover)
        if waiting.hits >= 2:
            try:
                self._record(bucket)
            except Exception:
                # Whoever sent the batch did not ask for a recording.
                logger.exception("graph not captured", extra={"bucket": bucket})
            if bucket in self._recordings:
                return bucket, self._replay(bucket)
        self.counters.eager += 1
        return bucket, None

    def recorded(self, bucket: Bucket) -> R | None:
        """A bucket's recording, if there is one; not a hit."""
        return self._recordings.get(bucket)

    def warm(self, buckets: Iterable[Bucket]) -> None:
        """Record buckets ahead of their first hit, e.g. those that were hot before a restart."""
        for bucket in buckets:
            if self._recordable(bucket):
                self._record(bucket)

    def begin(self, bucket: Bucket) -> None:
        """As `warm`, for a bucket at a time, while batches go on; nothing while one is `recording`."""
        if not self.recording and self._recordable(bucket):
            self._begun = bucket, self._begin(bucket)

    @property
    def recording(self) -> bool:
        """Whether a recording is under way beside the batches."""
        self._collect(wait=False)
        return self._begun is not None

    def wanted(self) -> Bucket | None:
        """The bucket hit most often, and more than once, that is not recorded though it may be."""
        often = [(waiting.hits, bucket) for bucket, waiting in self._unrecorded.items() if waiting.hits > 1]
        return max(often)[1] if often else None

    def record_up_to(self, num_tokens: int) -> None:
        """Leave buckets of more tokens to eager runs, as a measurement said; never the other way, whatever it said."""
        self.largest = min(self.largest, num_tokens)

    @property
    def buckets(self) -> list[Bucket]:
        """Recorded buckets, most recently used last."""
        return list(self._recordings)

    def reset(self) -> None:
        """Free every recording and count from zero again."""
        self._collect(wait=True)
        while self._recordings:
            self._recordings.popitem()[1].close()
        self._unrecorded.clear()
        self._failed.clear()
        self.counters = GraphCounters()

    def _recordable(self, bucket: Bucket) -> bool:
        known = bucket in self._recordings or bucket in self._failed
        return not known and bucket.num_tokens <= self.largest

    def _replay(self, bucket: Bucket) -> R:
        self._recordings.move_to_end(bucket)
        self.counters.replays += 1
        return self._recordings[bucket]

    def _record(self, bucket: Bucket) -> None:
        """Return once it is recorded, or was found to fail beside the batches."""
        self._collect(wait=True)
        if self._recordable(bucket):
            self._keep(bucket, self._begin(bucket))

    def _begin(self, bucket: Bucket) -> Future[R]:
        self._unrecorded.pop(bucket, None)
        try:
            return self.capture(bucket)
        except Exception as cause:  # noqa: BLE001 - as if it had happened later
            failed: Future[R] = Future()
            failed.set_exception(cause)
            return failed

    def _collect(self, *, wait: bool) -> None:
        """Keep what was begun beside the batches, once it is done."""
        if self._begun is None or not (wait or self._begun[1].done()):
            return
        (bucket, begun), self._begun = self._begun, None
        try:
            self._keep(bucket, begun)
        except Exception:
            logger.exception("graph not captured", extra={"bucket": bucket})

    def _keep(self, bucket: Bucket, begun: Future[R]) -> None:
        try:
            recording = begun.result()
        except Exception:
            self._failed.add(bucket)
            raise
        finally:
            self._unrecorded.pop(bucket, None)  # it may have been hit meanwhile
        self.counters.captures += 1
        self.counters.num_bytes += recording.num_bytes
        self._recordings[bucket] = recording
        while self.counters.num_bytes > self.budget and len(self._recordings) > 1:
            evicted, old = self._recordings.popitem(last=False)
            old.close()
            self.counters.evictions += 1
            self.counters.num_bytes -= old.num_bytes
            logger.info("graph evicted", extra={"bucket": evicted, "bytes": old.num_bytes})
