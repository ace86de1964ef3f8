"""What an attention backend offers. Signatures only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class BackendUnavailableError(RuntimeError):
    """A backend cannot run here: package, kernel, card, dtype or head size; the message says which."""


@dataclass(frozen=True)
class Geometry:
    """The attention of one model.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads`.
        head_dim: width of one head.
        causal: whether a token sees only earlier ones.
        dtype: of queries, keys and values.
        device: where they lie.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class RaggedLayout:
    """Bounds every batch of one bucket keeps, so that one recording serves them all.

    Attributes:
        cu_seqlens: `[num_sequences + 1]` int32 on the device; its contents change from batch to batch.
        num_tokens: rows of q, k and v.
        max_seqlen: no real sequence is longer.
    """

    cu_seqlens: torch.Tensor
    num_tokens: int
    max_seqlen: int

    @property
    def num_sequences(self) -> int:
        """Sequences, padding ones included."""
        return len(self.cu_seqlens) - 1


class Attention(Protocol):
    """Ragged attention over the batches of one layout: `plan` once a batch, then a call a layer."""

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """Host work for the next batch, outside any graph.

        Args:
            cu_seqlens: the layout's offsets for this batch, int32 on the host (page-locked if on a GPU).
        """

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend within each sequence.

        Args:
            q: `[num_tokens, num_heads, head_dim]`.
            k: `[num_tokens, num_kv_heads, head_dim]`.
            v: as `k`.

        Returns:
            `[num_tokens, num_heads, head_dim]`. Rows beyond the last real token are undefined.
        """


class AttentionBackend(Protocol):
    """A way to run ragged attention for one geometry."""

    @property
    def name(self) -> str:
        """As it appears in logs, settings and measurements."""

    @property
    def capturable(self) -> bool:
        """Whether its calls may be recorded in a CUDA graph."""

    def open(self, layout: RaggedLayout) -> Attention:
        """Prepare for the batches of one layout."""
