"""What an attention backend offers, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from rose_backend.kernels.ops import Ops, Rotation


class BackendUnavailableError(RuntimeError):
    """A backend cannot run here: package, kernel, card, dtype, head size or length; the message says which."""


@dataclass(frozen=True)
class Geometry:
    """The attention of a model, or of one kind of its layers.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads`.
        head_dim: width of one head.
        causal: whether a token sees only earlier ones.
        dtype: of queries, keys and values.
        device: where they lie.
        window: how many tokens to the left and to the right a token sees; None: the whole sequence.
        score_scale: what scores are multiplied with; None: `head_dim ** -0.5`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    dtype: torch.dtype
    device: torch.device
    window: tuple[int, int] | None = None
    score_scale: float | None = None

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return float(self.head_dim**-0.5) if self.score_scale is None else self.score_scale

    @property
    def heads(self) -> list[int]:
        """Query, key and value heads, as they stand in a fused projection."""
        return [self.num_heads, self.num_kv_heads, self.num_kv_heads]


@dataclass(frozen=True)
class RaggedLayout:
    """Bounds every batch of one bucket keeps, so that one recording serves them all.

    Attributes:
        cu_seqlens: `[num_sequences + 1]` int32 on the device; its contents change from batch to batch.
        num_tokens: rows of the projection.
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

    def __call__(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """Attend within each sequence.

        Args:
            qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, a fused projection; may be overwritten.
            rotation: what queries and keys go through first.

        Returns:
            `[num_tokens, num_heads * head_dim]`. Rows beyond the last real token mean nothing, but are finite where all
            of `qkv` is: kernels that read a block across the end of a sequence multiply what follows by 0, which does
            not hide a NaN left there by memory's last user.
        """


class AttentionBackend(Protocol):
    """A way to run ragged attention for one geometry."""

    @property
    def name(self) -> str:
        """As it appears in logs, settings and measurements."""

    @property
    def capturable(self) -> bool:
        """Whether its calls may be recorded in a CUDA graph."""

    @property
    def longest(self) -> int | None:
        """Longest sequence it takes, in tokens; None: any."""

    @property
    def shares_workspace(self) -> bool:
        """Whether its batches must run one after another."""

    def open(self, layout: RaggedLayout) -> Attention:
        """Prepare for the batches of one layout."""


@dataclass(frozen=True)
class Attentions:
    """Attention over the batches of one layout, for each geometry of a model.

    Attributes:
        layout: what all of them were opened for.
        members: one for each geometry, in the model's order.
    """

    layout: RaggedLayout
    members: tuple[Attention, ...]

    @classmethod
    def open(cls, backends: Iterable[AttentionBackend], layout: RaggedLayout) -> Attentions:
        """One backend for each geometry, all on the same layout."""
        return cls(layout, tuple(backend.open(layout) for backend in backends))

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """See `Attention.plan`."""
        for member in self.members:
            member.plan(cu_seqlens)

    def __getitem__(self, kind: int) -> Attention:
        return self.members[kind]


def rotate(ops: Ops, geometry: Geometry, qkv: torch.Tensor, rotation: Rotation | None) -> None:
    """Norm and rotate queries and keys in place, as a launch of its own; nothing without a rotation."""
    if rotation is not None:
        norms, table, positions = rotation.norm_weights, rotation.cos_sin, rotation.positions
        ops.qk_norm_rope(qkv, norms, table, positions, geometry.num_heads, geometry.num_kv_heads, rotation.eps)


class SplitAttention(ABC):
    """An `Attention` whose kernel takes queries, keys and values apart; the rotation is a step before it."""

    def __init__(self, geometry: Geometry, ops: Ops) -> None:
        self._geometry = geometry
        self._ops = ops

    def plan(self, cu_seqlens: torch.Tensor) -> None:  # noqa: B027 (most backends have nothing to plan)
        """Nothing, unless a backend says otherwise. See `Attention`."""

    def __call__(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """See `Attention`."""
        geometry = self._geometry
        rotate(self._ops, geometry, qkv, rotation)
        q, k, v = qkv.view(len(qkv), -1, geometry.head_dim).split(geometry.heads, dim=1)
        return self.attend(q, k, v).flatten(1)

    @abstractmethod
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The kernel's own call.

        Args:
            q: `[num_tokens, num_heads, head_dim]`.
            k: `[num_tokens, num_kv_heads, head_dim]`.
            v: as `k`.

        Returns:
            `[num_tokens, num_heads, head_dim]`.
        """
