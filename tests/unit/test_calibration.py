"""The knee and the inflection from curves drawn by hand, and a real measurement."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rose_backend.calibration import inflection, knee, measure, synthetic_batch
from rose_backend.core import Batch
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.startup import Budgets


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({256: 1.0, 512: 1.0, 1024: 2.0, 2048: 4.0}, 512),  # flat, then straight: the corner
        ({256: 1.0, 512: 2.0, 1024: 4.0}, 256),  # full from the start
        ({256: 1.0, 512: 1.0, 1024: 1.0}, 1024),  # never full
        ({1024: 2.01, 2048: 4.0, 4096: 8.0}, 1024),  # half a per cent is noise
        ({1024: 2.04, 2048: 4.0, 4096: 8.0}, 2048),
        ({4096: 8.0, 8192: 15.9, 16384: 33.0}, 4096),  # past the best it gets worse
        ({256: 300.0, 512: 590.0}, 256),  # slow: nothing takes less than a quarter of a second
        ({256: 200.0, 512: 300.0}, 256),  # 512 would have better throughput, and take too long
    ],
)
def test_knee(times: dict[int, float], expected: int) -> None:
    assert knee(times, longest_ms=250.0) == expected


def test_an_online_budget_is_shorter() -> None:
    times = {1024: 2.59, 2048: 4.31, 4096: 7.87, 8192: 14.75, 16384: 28.55}  # a 0.6B model on an H200
    assert Budgets.measured(times, 10.0, 5.0) == Budgets(tokens=4096, beside=2048, bulk=16384)
    assert Budgets.measured({1024: 12.0, 2048: 20.0}, 10.0, 5.0) == Budgets(tokens=1024, beside=1024, bulk=2048)


@pytest.mark.parametrize(
    ("replayed", "eager", "expected"),
    [
        ({1024: 2.0, 8192: 16.5}, {1024: 12.0, 8192: 16.0}, 1024),
        ({1024: 2.0, 8192: 16.0}, {1024: 12.0, 8192: 16.0}, 8192),  # as fast, and the host is free
        ({1024: 2.0, 8192: 16.0}, {1024: 12.0, 8192: 20.0}, 8192),
        ({1024: 2.1}, {1024: 2.0}, 0),
        ({1024: 2.0, 2048: 4.0}, {1024: 12.0}, 1024),  # what was not run eagerly is not compared
    ],
)
def test_inflection(replayed: dict[int, float], eager: dict[int, float], expected: int) -> None:
    assert inflection(replayed, eager) == expected


def test_a_synthetic_batch_is_what_it_says() -> None:
    batch = synthetic_batch(1000, 300, 50)
    assert (batch.num_tokens, batch.num_sequences, batch.max_seqlen) == (1000, 4, 300)
    assert batch.cu_seqlens.tolist() == [0, 100, 400, 700, 1000]
    assert 0 <= batch.input_ids.min() < batch.input_ids.max() < 50


def test_measuring_stops_at_the_first_step_that_takes_too_long() -> None:
    sizes = []

    def step(batch: Batch) -> LazyTensor:
        sizes.append(batch.num_tokens)
        if batch.num_tokens == 128:
            time.sleep(0.3)
        return LazyTensor(np.zeros((batch.num_sequences, 1), np.float32))

    times = measure(step, (64, 128, 256), 32, 10, longest_ms=250.0, load_seconds=0)
    assert list(times) == [64, 128]
    assert times[128] >= 300.0
    assert set(sizes) == {64, 128}
