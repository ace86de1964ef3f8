"""From logits to scores."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rose_backend.config import Activation
from rose_backend.core import FLOAT, Float32Array, Results


def score_tensors(
    shape: tuple[int, int], activation: Activation, raw: bool, results: Results
) -> Iterable[tuple[str, Float32Array]]:
    """Names and arrays of a reranker's answer.

    Args:
        shape: the client's b and n.
        activation: of the checkpoint.
        raw: whether scores are the logits.
        results: the logits, `[b * n, 1]`.
    """
    logits = results[FLOAT].reshape(shape)
    return (("SCORE", logits if raw else scores_of(logits, activation)), ("LOGIT", logits))


def scores_of(logits: Float32Array, activation: Activation) -> Float32Array:
    """Activated logits, float32 of the same shape; `activation` is one of `SCORE_ACTIVATIONS`.

    They may be equal where logits are not: from about 17 on the sigmoid is 1. So ranking goes by logits.
    """
    if activation is Activation.IDENTITY:
        return logits
    if activation is Activation.TANH:
        return np.tanh(logits)
    small = np.exp(-np.abs(logits))  # never overflows
    scores: Float32Array = np.where(logits >= 0, 1, small) / (1 + small)
    return scores.astype(np.float32, copy=False)
