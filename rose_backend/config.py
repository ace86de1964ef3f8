"""Frozen configuration of the engine. Strings from files and flags are parsed at the edge, never here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rose_backend.errors import CheckpointError


class PoolingMode(str, Enum):
    """How token vectors become one vector; names as in sentence-transformers' `pooling_mode`."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "lasttoken"


@dataclass(frozen=True)
class HeadConfig:
    """What happens after the last layer.

    Attributes:
        pooling: how a sequence's token vectors are pooled.
        normalize: whether the checkpoint ends in a Normalize module; a request may override it.
    """

    pooling: PoolingMode = PoolingMode.MEAN
    normalize: bool = True


@dataclass(frozen=True)
class GraphConfig:
    """Limits of graph capture on a GPU.

    Attributes:
        memory_budget: bytes all recordings may hold; the least recently used ones go first.
        largest_bucket: batches of more tokens run eagerly; 0 turns capture off.
    """

    memory_budget: int = 4 * 2**30
    largest_bucket: int = 16384


@dataclass(frozen=True)
class EngineConfig:
    """One checkpoint on one device.

    Attributes:
        checkpoint: folder with `config.json` and `model.safetensors`.
        max_length: longest sequence served, in tokens, special tokens included.
        head: pooling and normalisation.
        device: a torch device string, e.g. `cpu` or `cuda:0`.
        token_budget: most tokens in one batch. At least `max_length`, so that every sequence fits some batch.
        max_sequences: most sequences in one batch.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: float32 on the CPU, bfloat16 on a GPU.
        attention: a backend's name, or `auto` to measure and choose per bucket.
        graphs: capture limits.

    Raises:
        CheckpointError: a limit is not positive, or the budget is smaller than `max_length`.
    """

    checkpoint: Path
    max_length: int
    head: HeadConfig
    device: str = "cpu"
    token_budget: int = 1024
    max_sequences: int = 512
    dtype: str = "auto"
    attention: str = "auto"
    graphs: GraphConfig = GraphConfig()

    def __post_init__(self) -> None:
        if self.max_length < 1 or self.max_sequences < 1:
            raise CheckpointError(
                f"max_length ({self.max_length}) and max_sequences ({self.max_sequences}) must be at least 1"
            )
        if self.token_budget < self.max_length:
            raise CheckpointError(
                f"token_budget {self.token_budget} is smaller than the model's longest sequence, "
                f"{self.max_length} tokens: raise token_budget or lower max_length"
            )
