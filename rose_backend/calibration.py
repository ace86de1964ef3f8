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

_WORTH_DOUBLING = 1.01  # of the throughput: what a measurement can tell
_AS_FAST = 1.02  # times the eager time; a replay leaves the host, which a busy server needs, free
_WARM_UPS = 2  # the second run of a shape may record it
_LOAD_SECONDS = 1.0  # until a card runs as under load: out of idleness it is faster, above all with large batches


def synthetic_batch(num_tokens: int, length: int, vocab_size: int) -> Batch:
    """Random ids in sequences of `length` tokens, the last one shorter if need be."""
    lengths = [length] * (num_tokens // length)
    if num_tokens % length:
        lengths.append(num_tokens % length)
    ids = np.random.default_rng(num_tokens).integers(0, vocab_size, num_tokens, dtype=np.int32)
    request = Request(ids, np.array(lengths, np.int32), lambda _: None)
    return Batch.of((Segment(request, 0, len(lengths)),))


def measure(
    step: Step,
    sizes: Sequence[int],
    max_length: int,
    vocab_size: int,
    *,
    longest_ms: float,
    rounds: int = 9,
    load_seconds: float = _LOAD_SECONDS,
) -> dict[int, float]:
    """Milliseconds from launch to vectors on the host under load, by number of tokens.

    Args:
        step: runs a batch.
        sizes: in tokens, ascending; those after the first that takes too long are left out.
        max_length: of a sequence.
        vocab_size: token ids are below it.
        longest_ms: what one batch may keep everybody else waiting.
        rounds: how often each size is timed.
        load_seconds: how long the device is kept busy before.

    Returns:
        The median of the rounds over all sizes.
    """
    batches: dict[int, Batch] = {}
    for size in sizes:
        batches[size] = synthetic_batch(size, min(size, TYPICAL_LENGTH, max_length), vocab_size)
        milliseconds = min(_timed(step, batches[size]) for _ in range(_WARM_UPS))
        if milliseconds > longest_ms:
            return {known: _timed(step, batch) for known, batch in batches.items()}
    deadline = time.perf_counter() + load_seconds
    while time.perf_counter() < deadline:
        for batch in batches.values():
            step(batch).wait()
    taken = [{size: _timed(step, batch) for size, batch in batches.items()} for _ in range(rounds)]
    return {size: statistics.median(times[size] for times in taken) for size in batches}


def _timed(step: Step, batch: Batch) -> float:
    began = time.perf_counter()
    step(batch).wait()
    return (time.perf_counter() - began) * 1e3


def knee(times: Mapping[int, float], longest_ms: float) -> int:
    """Up to where every doubling of a batch still wins throughput, and no batch takes longer than allowed.

    Args:
        times: milliseconds by number of tokens, each about twice the one before; not empty.
        longest_ms: what one batch may keep everybody else waiting; the smallest may all the same.
    """
    sizes = sorted(times)
    best = sizes[0]
    for size in sizes[1:]:
        if times[size] > longest_ms or size / times[size] < _WORTH_DOUBLING * best / times[best]:
            break
        best = size
    return best


def inflection(replayed: Mapping[int, float], eager: Mapping[int, float]) -> int:
    """Up to how many tokens a recording is worth its memory: the last measured size where it is as fast; 0 if none."""
    as_fast = [size for size, time in replayed.items() if size in eager and time <= _AS_FAST * eager[size]]
    return max(as_fast, default=0)
