"""ROSE itself: one checkpoint on one device, a step a batch."""

from __future__ import annotations

import logging
import time

import torch

from rose_backend.config import EngineConfig
from rose_backend.core import Batch
from rose_backend.cpu_runner import CpuRunner
from rose_backend.errors import CheckpointError
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.models.base import RaggedModel
from rose_backend.models.registry import load_model
from rose_backend.runner import Runner

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RoseEngine:
    """Runs batches. Not thread-safe: one thread owns it.

    Args:
        config: checkpoint, device, limits.

    Raises:
        CheckpointError: the checkpoint cannot be served as configured.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        began = time.perf_counter()
        device = torch.device(config.device)
        self._model = load_model(config.checkpoint, device, _dtype(config, device))
        if config.max_length > self._model.max_positions:
            raise CheckpointError(
                f"max_length {config.max_length} is more than the {self._model.max_positions} positions "
                f"that {config.checkpoint} was trained with"
            )
        loaded = time.perf_counter()
        self.runner = _runner(self._model, config, device)
        logger.info(
            "engine started",
            extra={
                "device": str(device),
                "load_seconds": round(loaded - began, 2),
                "prepare_seconds": round(time.perf_counter() - loaded, 2),
            },
        )

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self._model.hidden_size

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._model.vocab_size

    def step(self, batch: Batch) -> LazyTensor:
        """Launch one batch; `[batch.num_sequences, dim]` float32, in batch order."""
        return self.runner.run(batch)

    def close(self) -> None:
        """Free what the device holds, once no step is under way or to come."""
        self.runner.close()


def _dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if config.dtype not in _DTYPES:
        raise CheckpointError(f"dtype {config.dtype!r} is not one of {['auto', *_DTYPES]}")
    return _DTYPES[config.dtype]


def _runner(model: RaggedModel, config: EngineConfig, device: torch.device) -> Runner:
    if device.type == "cpu":
        return CpuRunner(model, config.head.pooling)
    from rose_backend.cuda_runner import CudaRunner  # the Triton language comes with CUDA builds of torch

    return CudaRunner(model, config)
