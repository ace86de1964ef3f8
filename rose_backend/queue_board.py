"""How full each engine's queue is, where the other processes of a server can read it: a small shared file.

The tokenizing processes refuse work that the engines would refuse, before they do any of it, and an engine learns
whether another has room. What is read may be a moment old, so the engine's own check remains the one that counts.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rose_backend.config import QueueConfig
from rose_backend.lanes import Depth, full_message

_SLOT = struct.Struct("<dqqqqqd")  # written at, tokens, requests, their limits, bulk tokens, tokens a second
_STALE_SECONDS = 5.0  # an engine that wrote nothing for so long is idle, or gone


@dataclass(frozen=True)
class Slot:
    """One engine's line.

    Attributes:
        written: `time.monotonic()` seconds.
        depth: what waits.
        config: its bounds; lanes are not told.
        bulk_tokens: of the tokens that wait, those in the bulk lane.
        tokens_per_second: of its last batches; 0: not known.
    """

    written: float
    depth: Depth
    config: QueueConfig
    bulk_tokens: int
    tokens_per_second: float

    @property
    def is_full(self) -> bool:
        """Whether a request of any size would be refused."""
        return _is_full(self.depth.tokens, self.depth.requests, self.config.max_tokens, self.config.max_requests)


class QueueBoard:
    """The file, mapped. One writer a slot; a reader may see some of its numbers a moment older than the others.

    Args:
        path: made, with room for `num_slots`, by whoever comes first.
        num_slots: engines of the model.
        clock: `time.monotonic`, which all processes of a machine share.

    Raises:
        OSError: the file cannot be made, or there is no room for it.
    """

    def __init__(self, path: Path, num_slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        size = num_slots * _SLOT.size
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            # Blocks, not only a size: on a full disk the first write to a hole would be SIGBUS for the whole process.
            os.posix_fallocate(handle, 0, max(size, os.fstat(handle).st_size))
            self._map = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        self.num_slots = num_slots

    @classmethod
    def of_server(cls, server_pid: int, model: str, num_slots: int) -> QueueBoard:
        """The board of one engine model in one server; files of servers that are gone are removed.

        It lies in the temporary folder and not in shared memory, which containers may share while their servers have
        the same process id.
        """
        folder, mine = Path(tempfile.gettempdir()), f"rose-{os.getuid()}-"
        for left in folder.glob(f"{mine}*.queue"):
            pid = left.name.removeprefix(mine).split("-", 1)[0]
            if not Path(f"/proc/{pid}").exists():
                left.unlink(missing_ok=True)
        return cls(folder / f"{mine}{server_pid}-{model}.queue", num_slots)

    def write(self, index: int, depth: Depth, config: QueueConfig, bulk_tokens: int, tokens_per_second: float) -> None:
        """Tell how full engine `index` is."""
        line = _SLOT.pack(
            self._clock(), depth.tokens, depth.requests, config.max_tokens, config.max_requests, bulk_tokens,
            tokens_per_second,
        )  # fmt: skip
        # Not `pack_into`: that clears the place first, and a reader would see an engine that takes nothing.
        self._map[index * _SLOT.size : (index + 1) * _SLOT.size] = line

    def read(self) -> list[Slot]:
        """Every engine that wrote within the last few seconds."""
        now = self._clock()
        slots = []
        for index in range(self.num_slots):
            written, tokens, requests, max_tokens, max_requests, bulk, rate = _SLOT.unpack_from(
                self._map, index * _SLOT.size
            )
            if _is_fresh(written, now) and max_tokens > 0 and max_requests > 0:
                config = QueueConfig(max_tokens, max_requests)
                slots.append(Slot(written, Depth(tokens, requests), config, bulk, rate))
        return slots

    def refusal(self) -> str | None:
        """What to tell a sender if every engine is full; None: there is room, or nobody knows."""
        # Of numbers, not of slots: every call for a tokenizer asks, and nearly always that is all.
        numbers = (_SLOT.unpack_from(self._map, index * _SLOT.size) for index in range(self.num_slots))
        if not all(_is_full(*of_one[1:5]) for of_one in numbers):
            return None
        slots = self.read()
        if len(slots) < self.num_slots:
            return None
        emptiest = min(slots, key=lambda slot: slot.depth.tokens)
        return full_message(emptiest.depth, emptiest.config, emptiest.tokens_per_second)

    def another_has_room(self, index: int, bulk_tokens: int) -> bool:
        """Whether an engine other than `index` has fewer than `bulk_tokens` tokens of bulk work waiting.

        One that is silent is idle: it has room.
        """
        now = self._clock()
        for other in range(self.num_slots):
            written, _, _, _, _, bulk, _ = _SLOT.unpack_from(self._map, other * _SLOT.size)
            if other != index and (bulk < bulk_tokens or not _is_fresh(written, now)):
                return True
        return False


def _is_full(tokens: int, requests: int, max_tokens: int, max_requests: int) -> bool:
    return tokens >= max_tokens or requests >= max_requests


def _is_fresh(written: float, now: float) -> bool:
    """Not of a future long off either: the clock begins anew when the machine does, which a file may outlive."""
    return abs(now - written) <= _STALE_SECONDS
