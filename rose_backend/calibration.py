"""Measured at start on this device, for this model: the token budget, and up to where recordings pay.

For models of less than a billion parameters a step's time follows its tokens: flat while the device is not full,
then a straight line. Batches beyond the knee win nothing in throughput and cost everybody latency.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rose_backend.core import Batch, Request, Segment
from rose_backend.lazy_tensor import LazyTensor

Step = Callable[[Batch], LazyTensor]

TYPICAL_LENGTH = 512
"""Tokens of the sequences that are timed, where the model allows."""

_NEAR_BEST = 0.97  # of the best throughput; the rest is noise and padding
_WORTH_RECORDING = 0.98  # of the eager time
_WARM_UPS, _TIMED = 2, 5
_LONG_STEP_MS = 250.0  # what one batch may keep everybody else waiting; larger ones are not tried


def synthetic_batch(num_tokens: int, length: int, vocab_size: int) -> Batch:
    """Random ids in sequences of `length` tokens, the last one shorter if need be."""
    lengths = [length] * (num_tokens // length)
    if num_tokens % length:
        lengths.append(num_tokens % length)
    ids = np.random.default_rng(num_tokens).integers(0, vocab_size, num_tokens, dtype=np.int32)
    request = Request(ids, np.array(lengths, np.int32), lambda _: None)
    return Batch.of((Segment(request, 0, len(lengths)),))


def milliseconds(step: Step, batch: Batch) -> float:
    """Median time from launch to vectors on the host, once warm."""
    taken = []
    for _ in range(_WARM_UPS + _TIMED):
        began = time.perf_counter()
        step(batch).wait()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken[_WARM_UPS:])


def measure(step: Step, sizes: Sequence[int], max_length: int, vocab_size: int) -> dict[int, float]:
    """Milliseconds by number of tokens, for ascending sizes; stops at the first that takes too long to serve."""
    times: dict[int, float] = {}
    for size in sizes:
        times[size] = milliseconds(step, synthetic_batch(size, min(size, TYPICAL_LENGTH, max_length), vocab_size))
        if times[size] > _LONG_STEP_MS:
            break
    return times


def knee(times: Mapping[int, float]) -> int:
    """The fewest tokens whose throughput is as good as the best, among those that take no longer than allowed.

    Args:
        times: milliseconds by number of tokens; not empty.
    """
    allowed = {size: time for size, time in times.items() if time <= _LONG_STEP_MS} or {min(times): times[min(times)]}
    best = max(size / time for size, time in allowed.items())
    return min(size for size, time in allowed.items() if size / time >= _NEAR_BEST * best)


def inflection(replayed: Mapping[int, float], eager: Mapping[int, float]) -> int:
    """Up to how many tokens a recording is worth its memory: the last measured size where it is faster; 0 if none."""
    faster = [size for size, time in replayed.items() if size in eager and time < _WORTH_RECORDING * eager[size]]
    return max(faster, default=0)
