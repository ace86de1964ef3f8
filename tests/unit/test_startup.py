"""What start-up settles, with a runner whose steps take as long whatever their size."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rose_backend import startup
from rose_backend.buckets import Bucket
from rose_backend.calibration import measure
from rose_backend.config import EngineConfig, HeadConfig
from rose_backend.core import FLOAT, Batch, Output
from rose_backend.graphs import GraphCache
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.startup import CUDA_SIZES, Budgets, prepare_cpu, prepare_cuda

_SLOW_FROM = 2048


class Runner:
    """Stands in for a `CudaRunner`, whose attention may or may not be recordable."""

    def __init__(self, largest: int, room: Bucket | None = None) -> None:
        self._room = room
        self.selectors: list[Any] = []
        self.pools_spans = False
        self.outputs: Output = FLOAT
        self.graphs: GraphCache[Any] = GraphCache(self._capture, budget=1, largest=largest)

    def run_eagerly(self, batch: Batch) -> LazyTensor:
        bucket = Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen)
        assert self._room is None or self._room.holds(bucket)
        time.sleep(0.002)
        return LazyTensor(np.zeros((batch.num_sequences, 1), np.float32))

    def run_recorded(self, batch: Batch) -> LazyTensor:
        if batch.num_tokens >= _SLOW_FROM:  # as a busy machine may make it seem
            time.sleep(0.001)
        return self.run_eagerly(batch)

    def record_up_to(self, num_tokens: int) -> None:
        self.graphs.record_up_to(num_tokens)

    def forget(self) -> None:
        """Nothing was recorded."""

    def _capture(self, bucket: Bucket) -> Any:
        raise AssertionError(f"{bucket} was recorded")


@pytest.mark.parametrize("budget", [None, _SLOW_FROM])
def test_what_cannot_be_recorded_never_is(budget: int | None) -> None:
    runner = Runner(largest=0)
    config = EngineConfig(Path(), 512, HeadConfig(), "cuda:0", token_budget=budget)
    budgets = prepare_cuda(cast(Any, runner), config, vocab_size=100)
    assert runner.graphs.largest == 0
    assert budget is None or budgets == Budgets.given(budget)
    for _ in range(3):
        assert runner.graphs.find(Bucket.fitting(100, 4, 30))[1] is None


def test_bulk_work_on_a_cpu_makes_room_for_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two cores measured it for MiniLM: a query that has to wait for a batch waits for half as long."""
    monkeypatch.setattr(startup, "measure", lambda *_, **__: {256: 40.8, 512: 75.8, 1024: 147.1})
    budgets = prepare_cpu(
        cast(Any, SimpleNamespace(run=None)), EngineConfig(Path(), 512, HeadConfig(), "cpu"), vocab_size=100
    )
    assert budgets == Budgets(tokens=1024, beside=512, bulk=1024)


@pytest.mark.parametrize("budget", [None, 16])
@pytest.mark.parametrize("max_length", [1, 16, 8192])
@pytest.mark.parametrize("max_sequences", [1, 3, 512])
def test_nothing_is_run_that_there_is_no_room_for(
    monkeypatch: pytest.MonkeyPatch, budget: int | None, max_length: int, max_sequences: int
) -> None:
    """A runner has room for the largest batch of its limits and no more."""
    room = Bucket.fitting(max(budget or CUDA_SIZES[-1], max_length), max_sequences, max_length)
    monkeypatch.setattr(startup, "measure", partial(measure, rounds=1, load_seconds=0))
    config = EngineConfig(Path(), max_length, HeadConfig(), "cuda:0", token_budget=budget, max_sequences=max_sequences)
    prepare_cuda(cast(Any, Runner(0, room)), config, vocab_size=100)
