"""Which buckets batches fall into, remembered across restarts, so that a new process records them before they hit."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections import Counter, deque
from pathlib import Path

from rose_backend.buckets import Bucket
from rose_backend.cache_folder import cache_folder
from rose_backend.config import EngineConfig

logger = logging.getLogger(__name__)

_MOST_REMEMBERED = 64
_SECONDS_BETWEEN_SAVES = 60.0


class HotBuckets:
    """Hits by bucket, kept in a file. Older hits count half as much with every restart.

    Args:
        path: the file; it and its folder are made when there is something to remember.
        largest: buckets that do not fit inside are forgotten: the limits have changed since.
    """

    def __init__(self, path: Path, largest: Bucket) -> None:
        self._path = path
        self._hits = Counter({bucket: hits for bucket, hits in _load(path).items() if largest.holds(bucket)})
        self._from_before = deque(bucket for bucket, _ in self._hits.most_common())
        self._saved = time.monotonic()
        self._changed = False

    @classmethod
    def of(cls, config: EngineConfig, card: str, largest: Bucket) -> HotBuckets:
        """Those of one checkpoint on one kind of card."""
        key = repr((str(config.checkpoint.resolve()), card, config.dtype))
        name = f"hot-buckets-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        return cls(cache_folder() / name, largest)

    def hit(self, bucket: Bucket) -> None:
        """Count a batch."""
        self._hits[bucket] += 1
        self._changed = True

    def next_from_before(self) -> Bucket | None:
        """The hottest bucket of earlier processes that was not handed out yet."""
        return self._from_before.popleft() if self._from_before else None

    def save(self, *, now: bool = False) -> None:
        """Write the file if there is news and the last time was a minute ago, or `now`.

        A folder that cannot be written costs the next process its head start, not this one its life.
        """
        if not self._changed or (not now and time.monotonic() < self._saved + _SECONDS_BETWEEN_SAVES):
            return
        self._saved, self._changed = time.monotonic(), False
        hottest = self._hits.most_common(_MOST_REMEMBERED)
        rows = [[bucket.num_tokens, bucket.num_sequences, bucket.max_seqlen, hits] for bucket, hits in hottest]
        temporary = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(rows))
            temporary.replace(self._path)
        except OSError as cause:
            logger.warning("hot buckets not saved", extra={"path": str(self._path), "cause": repr(cause)})


def _load(path: Path) -> dict[Bucket, int]:
    try:
        rows = [(Bucket.fitting(*map(int, row[:3])), int(row[3]) // 2) for row in json.loads(path.read_text())]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, IndexError, OverflowError, OSError) as cause:
        logger.warning("hot buckets not read", extra={"path": str(path), "cause": repr(cause)})
        return {}
    return {bucket: hits for bucket, hits in rows if hits > 0}
