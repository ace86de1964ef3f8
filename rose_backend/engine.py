"""ROSE itself: one checkpoint on one device, a step a batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from rose_backend.buckets import Bucket
from rose_backend.config import EngineConfig
from rose_backend.core import Batch, Field
from rose_backend.cpu_runner import CpuRunner
from rose_backend.errors import CheckpointError
from rose_backend.heads import Head
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.models.base import RaggedModel
from rose_backend.models.registry import load_model
from rose_backend.runner import Runner
from rose_backend.scoring_head import ScoringHead
from rose_backend.splade_head import SpladeHead
from rose_backend.startup import CUDA_SIZES, Budgets, prepare_cpu, prepare_cuda

logger = logging.getLogger(__name__)

_MOST_THREADS = torch.get_num_threads()  # before any engine asks for fewer; torch counts no hyperthreads

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RoseEngine:
    """Runs batches. Not thread-safe: one thread at a time owns it.

    Attributes:
        config: checkpoint, device, limits.
        runner: what runs the batches.
        budgets: as configured, or as measured. A batch may hold one sequence that is longer.

    Raises:
        CheckpointError: the checkpoint cannot be served as configured.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        began = time.perf_counter()
        device = torch.device(config.device)
        if device.type == "cpu" and config.cpu_threads is not None:
            torch.set_num_threads(min(config.cpu_threads, _MOST_THREADS))
        self._model, self._head = _load(config, device)
        loaded = time.perf_counter()
        self.runner, self.budgets = _start(self._model, self._head, config, device)
        logger.info(
            "engine started",
            extra={
                "device": str(device),
                "token_budget": self.budgets.tokens,
                "beside_budget": self.budgets.beside,
                "bulk_budget": self.budgets.bulk,
                "load_seconds": round(loaded - began, 2),
                "prepare_seconds": round(time.perf_counter() - loaded, 2),
            },
        )

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self._head.dim

    @property
    def fields(self) -> tuple[Field, ...]:
        """What sequences may carry."""
        return self._head.fields

    @property
    def pools_spans(self) -> bool:
        """Whether parts of sequences may have vectors."""
        return self._head.pools_spans

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._model.vocab_size

    def step(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> LazyTensor:
        """Launch one batch; `[batch.num_sequences, dim]` float32, in batch order.

        Args:
            batch: what to run.
            between_layers: see `Runner.run`.
        """
        return self.runner.run(batch, between_layers)

    def idle(self) -> bool:
        """Do a little of what need not be done while requests wait; whether there may be more of it."""
        return self.runner.idle()

    @property
    def has_teams(self) -> bool:
        """See `Runner`."""
        return self.runner.has_teams

    def leave(self) -> None:
        """The calling thread will not step soon: another does. Unlike all else, this may be called while that steps."""
        self.runner.leave()

    def close(self) -> None:
        """Free what the device holds, once no step is under way or to come."""
        self.runner.close()


def check_loads(config: EngineConfig) -> None:
    """Refuse what an engine would refuse when it loads; of the weights no number is read or kept.

    Args:
        config: of the engine; its device is not looked at.

    Raises:
        CheckpointError: the checkpoint cannot be served as configured.
    """
    _load(config, torch.device("meta"))


def _load(config: EngineConfig, device: torch.device) -> tuple[RaggedModel, Head]:
    model = load_model(config.checkpoint, device, _dtype(config, device), allow_unsafe_dtype=config.allow_unsafe_dtype)
    if config.max_length > model.max_positions:
        raise CheckpointError(
            f"max_length {config.max_length} is more than the {model.max_positions} positions "
            f"that {config.checkpoint} was trained with"
        )
    return model, _head(config, model, device)


def _dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if config.dtype not in _DTYPES:
        raise CheckpointError(f"dtype {config.dtype!r} is not one of {['auto', *_DTYPES]}")
    return _DTYPES[config.dtype]


def _head(config: EngineConfig, model: RaggedModel, device: torch.device) -> Head:
    if config.head.splade is not None:
        return SpladeHead(config.head.splade, config.checkpoint, model.hidden_size, model.vocab_size, device)
    if config.score is None:
        return Head(config.head, model.hidden_size, device)
    return ScoringHead(config.score, config.checkpoint, model.hidden_size, device)


def _start(model: RaggedModel, head: Head, config: EngineConfig, device: torch.device) -> tuple[Runner, Budgets]:
    """A runner whose kernels have all run, and the token budgets."""
    if device.type == "cpu":
        cpu_runner = CpuRunner(model, head)
        return cpu_runner, prepare_cpu(cpu_runner, config, model.vocab_size)
    from rose_backend.cuda_runner import CudaRunner  # the Triton language comes with CUDA builds of torch

    most = max(config.token_budget or CUDA_SIZES[-1], config.max_length)
    runner = CudaRunner(model, head, config, Bucket.fitting(most, config.max_sequences, config.max_length))
    return runner, prepare_cuda(runner, config, model.vocab_size)
