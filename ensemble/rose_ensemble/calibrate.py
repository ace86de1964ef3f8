"""Measuring the ranges of a checkpoint's vectors on texts, without a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rose_backend.config import EngineConfig
from rose_backend.core import Float32Array, Request
from rose_backend.engine import RoseEngine
from rose_backend.errors import InvalidArgumentError, RoseError
from rose_backend.packer import TokenPacker
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.int8_ranges import measure_ranges
from rose_ensemble.options import RequestOptions
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeStep

_TEXTS_AT_ONCE = 512
_TOKENS_AT_ONCE = 4096


def calibrate(folder: Path, texts: Sequence[str], device: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The ranges of the vectors of these texts; see `int8_ranges`.

    Args:
        folder: the checkpoint.
        texts: as requests without options would bring them, two at least.
        device: a torch device string.
        sizes: lengths to which vectors may be cut, besides those that the files list.

    Raises:
        CheckpointError: the checkpoint cannot be served.
        InvalidArgumentError: too few texts, or one that cannot be tokenized.
    """
    if len(texts) < 2:
        raise InvalidArgumentError(f"{len(texts)} texts have no ranges: give 2 at least, better thousands")
    checkpoint = read_checkpoint(folder)
    listed = checkpoint.matryoshka.sizes
    for size in sizes:
        checkpoint.matryoshka.wanted(size)
    known = {*(() if isinstance(listed, range) else listed), *sizes, checkpoint.matryoshka.default}
    step = TokenizeStep(checkpoint, TextLimits())
    engine = RoseEngine(
        EngineConfig(checkpoint.folder, checkpoint.max_length, checkpoint.head, device, token_budget=_TOKENS_AT_ONCE)
    )
    try:
        parts = [
            _vectors(engine, step, texts[first : first + _TEXTS_AT_ONCE])
            for first in range(0, len(texts), _TEXTS_AT_ONCE)
        ]
    finally:
        engine.close()
    return measure_ranges(np.concatenate(parts), tuple(sorted(known - {0, checkpoint.matryoshka.dim})))


def _vectors(engine: RoseEngine, step: TokenizeStep, texts: Sequence[str]) -> Float32Array:
    [outcome] = step.run([TokenizeInput(list(texts), (1, len(texts)), RequestOptions(), 0)])
    if isinstance(outcome, RoseError):
        raise outcome
    work = outcome.work
    request = Request(work.input_ids, work.lengths, _nobody, normalize=False, fields=work.fields)
    return np.concatenate(list(_batches(engine, request)))


def _batches(engine: RoseEngine, request: Request) -> Iterator[Float32Array]:
    packer, queue = TokenPacker(engine.budgets.tokens, engine.config.max_sequences), deque([request])
    while (batch := packer.take(queue)) is not None:
        yield engine.step(batch).numpy()


def _nobody(_: object) -> None:
    """Rows are taken from the engine itself."""
