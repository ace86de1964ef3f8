"""The handle a step returns, and the page-locked ring its values arrive in.

A slot of the ring goes back only when the last reader has let go: the handle itself, or any array made from it.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rose_backend.core import FLOAT, Float32Array, Results
from rose_backend.cuda_driver import recorded_event

_TYPESTRS = {torch.float32: "<f4", torch.int32: "<i4", torch.int8: "|i1", torch.uint8: "|u1"}


@dataclass(frozen=True)
class CopyEvents:
    """Around one copy: recorded when the values are computed, and when they are on the host."""

    computed: torch.cuda.Event
    copied: torch.cuda.Event

    @classmethod
    def new(cls) -> CopyEvents:
        """Two events that can be timed."""
        return cls(recorded_event(timed=True), recorded_event(timed=True))


class LazyTensor:
    """Vectors of one batch on the host, perhaps still on their way.

    Args:
        rows: the host values, `[num_rows, dim]` float32 or in several forms; their arrays' bases keep the memory from
            being reused.
        events: recorded before and after the copy; None where the values are already there.
        padding: tokens that were run beside the batch's own, to fill its bucket.
        replayed: whether they were made by a recorded graph.

    Attributes:
        at_once: whether the values were there from the start.
    """

    def __init__(
        self,
        rows: Float32Array | Results,
        events: CopyEvents | None = None,
        padding: int = 0,
        *,
        replayed: bool = False,
    ) -> None:
        self._results = {FLOAT: rows} if isinstance(rows, np.ndarray) else rows
        self._events = events
        self.padding = padding
        self.replayed = replayed
        self.at_once = events is None

    def ready(self) -> bool:
        """Whether `numpy` would return without waiting."""
        return self._events is None or bool(self._events.copied.query())

    def wait(self) -> None:
        """Block until the values are on the host; other threads run meanwhile."""
        if self._events is not None:
            self._events.copied.synchronize()

    @property
    def copy_seconds(self) -> float:
        """How long the copy took on the device, once it is over; 0 where there was none."""
        return 0.0 if self._events is None else float(self._events.computed.elapsed_time(self._events.copied)) / 1e3

    def seconds_since(self, previous: LazyTensor) -> float:
        """From when another step's values were on the host until these were, by the device's clock.

        Args:
            previous: of an earlier step of the same engine. Both copies are over, and neither was there from the start.
        """
        assert previous._events is not None
        assert self._events is not None
        return float(previous._events.copied.elapsed_time(self._events.copied)) / 1e3

    def numpy(self) -> Float32Array:
        """`results` in float32, `[num_rows, dim]`, where the batch wants that."""
        return self.results()[FLOAT]

    def results(self) -> Results:
        """Wait, then return the values by form, without copying.

        An array, and every view of it, keeps its memory: nothing will be written there while one is alive.
        """
        self.wait()
        return self._results


class _Slot:
    """One buffer of the ring and the events of the last copy into it."""

    def __init__(self, capacity: int, dtype: torch.dtype, pinned: bool) -> None:
        self.buffer = torch.empty(capacity, dtype=dtype, pin_memory=pinned)
        self.capacity = capacity
        self.address = self.buffer.data_ptr()
        self.events = CopyEvents.new() if pinned else None


class _Lease:
    """Owner of a slot's memory while arrays look at it; numpy keeps it as those arrays' base."""

    def __init__(self, slot: _Slot, shape: tuple[int, int], typestr: str) -> None:
        self._slot = slot
        self.__array_interface__: dict[str, Any] = {
            "data": (slot.address, False),
            "shape": shape,
            "typestr": typestr,
            "version": 3,
        }


class PinnedRing:
    """Page-locked result buffers. Starts with two and grows when readers hold on to them.

    `take` belongs to the engine thread; slots come back from whichever thread drops the last array.

    Args:
        capacity: values of a slot; one that must hold more is made larger.
        dtype: of a value: float32, int32, int8 or uint8.
        pinned: page-lock the buffers; off only where there is no GPU.
    """

    def __init__(self, capacity: int, dtype: torch.dtype = torch.float32, *, pinned: bool = True) -> None:
        self._capacity = capacity
        self._dtype = dtype
        self._typestr = _TYPESTRS[dtype]
        self._pinned = pinned
        self._free: deque[_Slot] = deque(_Slot(capacity, dtype, pinned) for _ in range(2))
        self.num_slots = 2

    def take(self, num_rows: int, dim: int) -> tuple[npt.NDArray[Any], int, CopyEvents | None]:
        """A buffer nobody reads or writes.

        Returns:
            The `[num_rows, dim]` array that readers get, the address to copy to, and the events to record around
            the copy. The slot is free again once that array and all its views are gone.
        """
        # No lock: a deque's own steps are atomic, and a collection may run `_give_back` in the middle of this method.
        try:
            slot = self._free.popleft()
        except IndexError:
            slot = _Slot(self._capacity, self._dtype, self._pinned)
            self.num_slots += 1
        if slot.events is not None and not slot.events.copied.query():
            slot.events.copied.synchronize()  # a handle that was dropped unread may have left its copy under way
        if num_rows * dim > slot.capacity:  # more spans than sequences fit in a batch; rare, and then it stays large
            slot = _Slot(1 << (num_rows * dim - 1).bit_length(), self._dtype, self._pinned)
        lease = _Lease(slot, (num_rows, dim), self._typestr)
        weakref.finalize(lease, self._give_back, slot)
        return np.asarray(lease), slot.address, slot.events

    def _give_back(self, slot: _Slot) -> None:
        self._free.append(slot)
