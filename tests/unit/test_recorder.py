"""Who waits for a recording is not left waiting, whatever became of it; no GPU is needed to fail."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn

import pytest
import torch

from rose_backend.buckets import Bucket
from rose_backend.capture import CudaRecording, GraphRecorder

A, B = Bucket(16, 1, 32), Bucket(32, 1, 32)


class Stream:
    """As much of one as a recorder needs on its way to a fault."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


def recorder(monkeypatch: pytest.MonkeyPatch) -> GraphRecorder:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    return GraphRecorder(torch.device("cpu"), torch.float32)


def unreachable() -> NoReturn:
    raise AssertionError("nothing is run on a thread that is not ready")


def returns_from_waiting(made: GraphRecorder, bucket: Bucket) -> bool:
    waiting = threading.Thread(target=made.wait_for, args=(bucket,), daemon=True)
    waiting.start()
    waiting.join(10)
    return not waiting.is_alive()


def test_a_thread_that_cannot_be_prepared_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine waits before it runs the bucket, and would never again answer anybody."""
    made = recorder(monkeypatch)

    def full(_stream: Stream) -> None:
        raise torch.cuda.OutOfMemoryError("the card is full")

    monkeypatch.setattr(torch.cuda, "set_stream", full)
    begun = made.begin(A, unreachable, None)
    assert begun.exception(10) is not None
    assert returns_from_waiting(made, A)
    with pytest.raises(RuntimeError):
        made.begin(B, unreachable, None)  # it is broken for good
    assert returns_from_waiting(made, B)
    made.close()


def test_who_waits_goes_on_when_the_recording_is_there_or_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorder(monkeypatch)
    made._thread = ThreadPoolExecutor(1)
    go = threading.Event()

    def record(bucket: Bucket, *_: object) -> object:
        assert go.wait(30)
        if bucket == B:
            raise MemoryError("the card is full")
        return object()

    monkeypatch.setattr(made, "_record", record)
    begun = [made.begin(bucket, unreachable, None) for bucket in (A, B)]
    waiting = [threading.Thread(target=made.wait_for, args=(bucket,)) for bucket in (A, B)]
    for thread in waiting:
        thread.start()
    waiting[0].join(0.1)
    assert waiting[0].is_alive()
    go.set()
    for thread in waiting:
        thread.join(30)
        assert not thread.is_alive()
    assert [future.exception() is None for future in begun] == [True, False]
    made.close()


def test_what_is_dropped_unasked_for_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is by bucket, and a bucket may never come again: its recording is not kept for that."""
    made = recorder(monkeypatch)
    made._thread = ThreadPoolExecutor(1)
    monkeypatch.setattr(made, "_record", lambda *_: object())
    begun: Future[CudaRecording] = made.begin(A, unreachable, None)
    begun.result(30)
    made.close()
    kept = weakref.ref(begun)
    del begun
    assert kept() is None
