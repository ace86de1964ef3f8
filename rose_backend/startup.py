"""What happens before a model is ready: every kernel runs once, then the limits are measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rose_backend.calibration import TYPICAL_LENGTH, inflection, knee, measure, synthetic_batch
from rose_backend.config import EngineConfig

if TYPE_CHECKING:
    from rose_backend.cpu_runner import CpuRunner
    from rose_backend.cuda_runner import CudaRunner

logger = logging.getLogger(__name__)

CPU_SIZES = (256, 512, 1024)
CUDA_SIZES = (1024, 2048, 4096, 8192, 16384)
"""Tokens of the batches that are timed; the token budgets are among them."""

_ONLINE_MS = 10.0  # what one batch of its own kind may keep a short query waiting
_BESIDE_MS = 5.0  # and one of bulk work
_BULK_MS = 250.0  # and one where nobody but bulk work waits; on a CPU one of the same kind, too
_CPU_BESIDE_MS = 125.0  # and there one of bulk work, of which a query waits for a layer: half the tokens cost 3 %


@dataclass(frozen=True)
class Budgets:
    """Most tokens in a batch of several sequences.

    Attributes:
        tokens: of online work.
        beside: of bulk work while anybody is online; not more.
        bulk: of bulk work that is alone; not less.
    """

    tokens: int
    beside: int
    bulk: int

    @classmethod
    def given(cls, tokens: int) -> Budgets:
        """The same for all."""
        return cls(tokens, tokens, tokens)

    @classmethod
    def measured(cls, times: dict[int, float], online_ms: float, beside_ms: float) -> Budgets:
        """From milliseconds by number of tokens, and what a batch may take."""
        budgets = cls(knee(times, online_ms), knee(times, beside_ms), knee(times, _BULK_MS))
        milliseconds = {size: round(time, 2) for size, time in times.items()}
        logger.info(
            "token budget measured",
            extra={
                "token_budget": budgets.tokens,
                "beside": budgets.beside,
                "bulk": budgets.bulk,
                "milliseconds": milliseconds,
            },
        )
        return budgets


@dataclass(frozen=True)
class Shape:
    """A batch of `count` sequences of `length` tokens."""

    count: int
    length: int


# Each size at which some kernel is another, so that none is compiled or loaded while a request waits.
_KERNEL_SHAPES = (
    *(Shape(1, tokens) for tokens in (16, 32, 64, 128, 256, 512, 1024, 2048)),
    *(Shape(64, length) for length in (16, 32, 64, 128)),
    Shape(300, 16),  # some kernels change above 256 sequences
)


def prepare_cpu(runner: CpuRunner, config: EngineConfig, vocab_size: int) -> Budgets:
    """Measure the token budgets, unless one is given for all; returns them."""
    if config.token_budget is not None:
        return Budgets.given(config.token_budget)
    # Two rounds do: a step takes long enough to be timed well, and a start should not.
    times = measure(runner.run, CPU_SIZES, config.max_length, vocab_size, longest_ms=_BULK_MS, rounds=2, load_seconds=0)
    return Budgets.measured(times, _BULK_MS, _CPU_BESIDE_MS)


def prepare_cuda(runner: CudaRunner, config: EngineConfig, vocab_size: int) -> Budgets:
    """Run every kernel once, measure what is not given; returns the token budgets."""
    began = time.perf_counter()
    most = config.token_budget or CUDA_SIZES[-1]
    for shape in (*_kernel_shapes(config, most), *_backend_shapes(runner, config, most)):
        runner.run_eagerly(synthetic_batch(shape.count * shape.length, shape.length, vocab_size)).wait()
    plain = synthetic_batch(1, 1, vocab_size)
    coded = replace(plain, outputs=runner.outputs)
    runner.run_eagerly(coded).wait()
    if runner.pools_spans:
        runner.run_eagerly(replace(coded, spans=np.array([[0], [1], [1]], np.int32))).wait()
    seconds = round(time.perf_counter() - began, 2)
    backends = [selector.names_in_use for selector in runner.selectors]
    logger.info("kernels ready", extra={"seconds": seconds, "attention": backends})
    largest = min(most, config.max_sequences * min(config.max_length, TYPICAL_LENGTH))
    sizes = [size for size in CUDA_SIZES if size <= largest] or [largest]
    replayed = measure(runner.run_recorded, sizes, config.max_length, vocab_size, longest_ms=_BULK_MS)
    given = config.token_budget
    budgets = Budgets.measured(replayed, _ONLINE_MS, _BESIDE_MS) if given is None else Budgets.given(given)
    if config.graphs.largest_bucket is None:
        in_use = [size for size in replayed if size <= budgets.bulk]
        eager = measure(runner.run_eagerly, in_use, config.max_length, vocab_size, longest_ms=_BULK_MS, load_seconds=0)
        limit = inflection(replayed, eager)
        if limit < max(in_use, default=0):
            runner.record_up_to(limit)
        eager_ms = {size: round(time, 2) for size, time in eager.items()}
        logger.info("inflection measured", extra={"eager_ms": eager_ms, "largest_recorded": limit})
    runner.forget()  # what was recorded on made-up batches
    return budgets


def _kernel_shapes(config: EngineConfig, most: int) -> Iterator[Shape]:
    for shape in _KERNEL_SHAPES:
        length = min(shape.length, config.max_length, most)
        yield Shape(max(1, min(shape.count, config.max_sequences, most // length)), length)


def _backend_shapes(runner: CudaRunner, config: EngineConfig, most: int) -> Iterator[Shape]:
    """One for every attention backend that the measurements chose somewhere."""
    for shape in (shape for selector in runner.selectors for shape in selector.first_shapes().values()):
        if shape.length <= config.max_length and shape.num_tokens <= most:
            yield Shape(max(1, min(config.max_sequences, shape.num_tokens // shape.length)), shape.length)
