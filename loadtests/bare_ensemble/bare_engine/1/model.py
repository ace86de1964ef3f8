"""Computes as long as a small model would, and leaves as much in the caches; what comes out means nothing."""

# ruff: noqa: I001 (rose_backend says how OpenMP's threads wait, which must be before torch loads it)

import time
from typing import Any

from rose_ensemble.cores import engine_threads
import rose_backend  # noqa: F401

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.nn.functional import gelu, layer_norm

# all-MiniLM-L6-v2's: layers, hidden size, intermediate size; a text of 24 words has about so many tokens.
_LAYERS, _HIDDEN, _WIDE, _TOKENS = 6, 384, 1536, 30


class TritonPythonModel:
    """A step is the matrix products and norms of an encoder without attention."""

    def initialize(self, _args: dict[str, str]) -> None:
        """Draw weights."""
        threads = engine_threads(1)
        if threads is not None:
            torch.set_num_threads(threads)
        shapes = ((_HIDDEN, 3 * _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, _WIDE), (_WIDE, _HIDDEN))
        self._layers = [[torch.randn(shape) * 0.02 for shape in shapes] for _ in range(_LAYERS)]
        self._hidden = torch.randn(_TOKENS, _HIDDEN)
        # Named as the engine's own, so that they are read in the same way.
        names = ("rose_step_seconds_sum", "rose_step_seconds_count")
        families = [pb_utils.MetricFamily(name, "Of steps", pb_utils.MetricFamily.COUNTER) for name in names]
        self._kept = families  # a metric ends with its family
        self._seconds, self._steps = (family.Metric(labels={}) for family in families)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One step, and one answer, for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        request.inputs()[0].as_numpy().copy()
        began = time.perf_counter()
        vector = self._step()
        self._seconds.increment(time.perf_counter() - began)
        self._steps.increment(1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", vector)])

    @torch.inference_mode()
    def _step(self) -> np.ndarray:
        hidden = self._hidden
        for qkv, output, wide, narrow in self._layers:
            mixed = layer_norm((hidden @ qkv)[:, :_HIDDEN] @ output + hidden, (_HIDDEN,))
            hidden = layer_norm(gelu(mixed @ wide) @ narrow + mixed, (_HIDDEN,))
        return hidden.mean(0).numpy()[None, None]
