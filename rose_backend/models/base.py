"""What an architecture offers the engine. Signatures only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rose_backend.attention.base import Attentions, Geometry
from rose_backend.kernels.ops import Ops


@dataclass(frozen=True)
class ModelSource:
    """What a model is built from.

    Attributes:
        folder: the checkpoint, with its weights.
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
        num_token_types: token types are below it; 1: there is nothing to tell apart, and types are not looked at.
        rotates: whether queries and keys are rotated before attention.
        geometries: of the attention of each kind of layer, the main one first.
        layer_kinds: for each layer, which of them is its own.
    """

    hidden_size: int
    vocab_size: int
    max_positions: int
    num_token_types: int
    rotates: bool
    geometries: tuple[Geometry, ...]
    layer_kinds: tuple[int, ...]

    def __call__(
        self,
        input_ids: torch.Tensor,
        attends: Attentions,
        rows: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run all layers.

        Args:
            input_ids: `[total_tokens]` int32.
            attends: the batch's planned attention and its layout, which tells where sequences start.
            rows: `[num_rows]` int32, the tokens whose vectors are wanted; None: all.
            token_types: `[total_tokens]` int32, 1 in the second text of a pair; None: all 0.

        Returns:
            `[total_tokens, hidden_size]`, or `[num_rows, hidden_size]`: the last layer's output after any final norm.
        """
