"""Attention that lets something else happen before each layer's: where a batch that runs may be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from rose_backend.attention.base import Attention, Attentions
from rose_backend.kernels.ops import Rotation


@dataclass(frozen=True)
class InterruptedAttention:
    """See `Attention`.

    Attributes:
        attention: what attends.
        before: called before it does, once a layer.
    """

    attention: Attention
    before: Callable[[], None]

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """See `Attention`."""
        self.attention.plan(cu_seqlens)

    def __call__(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """See `Attention`."""
        self.before()
        return self.attention(qkv, rotation)


def interrupted(attends: Attentions, before: Callable[[], None]) -> Attentions:
    """The same attention with something before each layer's. All models attend once a layer."""
    return replace(attends, members=tuple(InterruptedAttention(member, before) for member in attends.members))
