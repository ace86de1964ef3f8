"""ROSE itself: one checkpoint on one device, a step a batch."""

from __future__ import annotations

import numpy as np
import torch

from rose_backend.attention.sdpa import SdpaAttention
from rose_backend.config import EngineConfig
from rose_backend.core import Batch
from rose_backend.errors import CheckpointError
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.models.registry import load_model
from rose_backend.pooling import normalize_rows, pool


class RoseEngine:
    """Runs batches. Not thread-safe: one thread owns it.

    Args:
        config: checkpoint, device, limits.

    Raises:
        CheckpointError: the checkpoint cannot be served as configured.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._model = load_model(config.checkpoint, torch.device(config.device), torch.float32)
        if config.max_length > self._model.max_positions:
            raise CheckpointError(
                f"max_length {config.max_length} is more than the {self._model.max_positions} positions "
                f"that {config.checkpoint} was trained with"
            )
        self._attention = SdpaAttention()

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self._model.hidden_size

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._model.vocab_size

    @torch.inference_mode()
    def step(self, batch: Batch) -> LazyTensor:
        """Launch one batch.

        Returns:
            `[batch.num_sequences, dim]` float32, in batch order.
        """
        cu_seqlens = torch.from_numpy(batch.cu_seqlens)
        starts = np.repeat(batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens))
        positions = torch.from_numpy(np.arange(batch.num_tokens, dtype=np.int32) - starts)
        hidden = self._model(torch.from_numpy(batch.input_ids), positions, self._attention.plan(batch.cu_seqlens))
        pooled = pool(hidden, cu_seqlens, self.config.head.pooling)
        return LazyTensor(normalize_rows(pooled, torch.from_numpy(batch.normalize)))
