"""From logits to scores."""

from __future__ import annotations

import numpy as np

from rose_backend.config import Activation
from rose_backend.core import Float32Array


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
