"""What an architecture offers the engine. Signatures only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rose_backend.attention.base import Attention, Geometry
from rose_backend.kernels.ops import Ops


@dataclass(frozen=True)
class ModelSource:
    """What a model is built from.

    Attributes:
        folder: the checkpoint, with safetensors weights.
        values: its `config.json`.
        device: where to compute.
        dtype: what to compute in.
        ops: the fused steps for that device.
    """

    folder: Path
    values: dict[str, Any]
    device: torch.device
    dtype: torch.dtype
    ops: Ops


class RaggedModel(Protocol):
    """A transformer over sequences laid back to back.

    Attributes:
        hidden_size: width of a token vector.
        vocab_size: token ids are below it.
        max_positions: longest sequence the weights allow, in tokens.
        num_layers: how often attention runs.
        rotates: whether queries and keys are normed and rotated before it.
        geometry: of every layer's attention.
    """

    hidden_size: int
    vocab_size: int
    max_positions: int
    num_layers: int
    rotates: bool
    geometry: Geometry

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attention, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run all layers.

        Args:
            input_ids: `[total_tokens]` int32.
            positions: `[total_tokens]` int32, from 0 in every sequence.
            attend: the batch's planned attention.
            rows: `[num_rows]` int32, the tokens whose vectors are wanted; None: all.

        Returns:
            `[total_tokens, hidden_size]`, or `[num_rows, hidden_size]`: the last layer's output after any final norm.
        """
