"""The result ring without a GPU: memory that anybody still looks at is never handed out again."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rose_backend.core import Float32Array
from rose_backend.lazy_tensor import LazyTensor, PinnedRing

ROWS, DIM = 4, 8


@pytest.fixture
def ring() -> PinnedRing:
    return PinnedRing(ROWS * DIM, pinned=False)


def address(array: Float32Array) -> int:
    return int(array.__array_interface__["data"][0])


def taken(ring: PinnedRing, value: float = 0.0, rows: int = ROWS) -> Float32Array:
    array, where, events = ring.take(rows, DIM)
    assert events is None
    assert where == address(array)
    array.fill(value)
    return array


def test_the_array_shows_what_was_copied_to_the_address(ring: PinnedRing) -> None:
    array, where, _ = ring.take(3, DIM)
    assert array.shape == (3, DIM)
    assert array.dtype == np.float32
    values = np.arange(3 * DIM, dtype=np.float32)
    ctypes.memmove(where, values.ctypes.data, values.nbytes)
    assert array.tolist() == np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM).tolist()


def test_a_slot_comes_back_when_its_array_is_gone(ring: PinnedRing) -> None:
    array = taken(ring)
    first = address(array)
    del array
    assert first in {address(taken(ring)) for _ in range(2)}
    assert ring.num_slots == 2


VIEWS: dict[str, Callable[[Float32Array], Float32Array]] = {
    "slice": lambda array: array[1:3],
    "row": lambda array: array[2],
    "slice of a slice": lambda array: array[1:][1:][:1],
    "transposed": lambda array: array.T,
    "reshaped": lambda array: array.reshape(-1),
    "view": lambda array: array.view(),
    "ascontiguousarray": np.ascontiguousarray,
    "asarray": np.asarray,
    "buffer": lambda array: np.frombuffer(memoryview(array).cast("B"), np.float32),
}


@pytest.mark.parametrize("look", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_keeps_the_slot(ring: PinnedRing, look: Callable[[Float32Array], Float32Array]) -> None:
    array = taken(ring, 7.0)
    first = address(array)
    view = look(array)
    del array
    others = [taken(ring, 1.0) for _ in range(5)]
    assert first not in {address(other) for other in others}
    assert (view == 7.0).all()
    del view, others
    again = [taken(ring) for _ in range(ring.num_slots)]
    assert first in {address(array) for array in again}


def test_a_handle_keeps_the_slot(ring: PinnedRing) -> None:
    handle = LazyTensor(taken(ring, 3.0))
    others = [taken(ring, 1.0) for _ in range(4)]
    assert handle.ready()
    assert (handle.numpy() == 3.0).all()
    assert len({address(array) for array in (*others, handle.numpy())}) == 5


def test_a_copy_does_not_keep_the_slot(ring: PinnedRing) -> None:
    array = taken(ring, 5.0)
    copy = array.copy()
    del array
    others = [taken(ring) for _ in range(2)]
    assert ring.num_slots == 2
    assert (copy == 5.0).all()
    del others


def test_the_ring_grows_while_readers_hold_on_and_then_no_more(ring: PinnedRing) -> None:
    held = [taken(ring, float(index)) for index in range(5)]
    assert ring.num_slots == 5
    assert [float(array[0, 0]) for array in held] == [0, 1, 2, 3, 4]
    assert len({address(array) for array in held}) == 5
    held.clear()
    held += [taken(ring) for _ in range(5)]
    assert ring.num_slots == 5


def test_threads_that_drop_arrays_never_share_memory(ring: PinnedRing) -> None:
    """One taker as in the engine; readers check that nobody wrote into what they hold, and drop it at random."""
    mailbox: list[tuple[Float32Array, float]] = []
    ready = threading.Condition()
    wrong: list[float] = []
    finished = False

    def read(seed: int) -> None:
        draw, held = random.Random(seed), []
        while True:
            with ready:
                ready.wait_for(lambda: mailbox or finished)
                if not mailbox:
                    break
                held.append(mailbox.pop())
            if len(held) > draw.randrange(4):
                array, value = held.pop(draw.randrange(len(held)))
                if not (array == value).all():
                    wrong.append(value)
                del array

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for reader in readers:
        reader.start()
    for turn in range(4000):
        array = taken(ring, float(turn))
        with ready:
            mailbox.append((array[: 1 + turn % ROWS], float(turn)))
            ready.notify()
        del array
    with ready:
        finished = True
        ready.notify_all()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()
    assert wrong == []


def test_no_two_live_arrays_overlap(ring: PinnedRing) -> None:
    draw, live = random.Random(1), []
    dropping = threading.Semaphore(0)
    box: list[Float32Array] = []

    def drop() -> None:
        while dropping.acquire() and box:
            box.pop()

    dropper = threading.Thread(target=drop)
    dropper.start()
    for _ in range(3000):
        live.append(taken(ring))
        starts = [address(array) for array in live]
        assert len(set(starts)) == len(starts)
        while len(live) > draw.randrange(1, 6):
            box.insert(0, live.pop(draw.randrange(len(live))))
            dropping.release()
    dropping.release()
    dropper.join(30)
    assert not dropper.is_alive()


def test_a_collection_while_a_slot_is_taken_does_not_block(ring: PinnedRing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last array of a slot may sit in a cycle, which is freed whenever a collection happens to run."""

    class CollectingDeque(deque[Any]):
        def popleft(self) -> Any:
            gc.collect()
            return super().popleft()

    monkeypatch.setattr(ring, "_free", CollectingDeque(ring._free))
    cycle: list[Any] = [taken(ring)]
    cycle.append(cycle)
    del cycle
    worker = threading.Thread(target=taken, args=(ring,), daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive()
