"""What an attention backend offers. Signatures only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from rose_backend.core import Int32Array

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(q, k, v) -> out`, each `[total_tokens, heads, head_dim]`; tokens attend within their own sequence."""


class AttentionBackend(Protocol):
    """A way to run ragged attention on one kind of device."""

    name: str

    def plan(self, cu_seqlens: Int32Array) -> Attend:
        """Host work for one batch, done once and used by every layer.

        Args:
            cu_seqlens: `[num_sequences + 1]` int32 on the host; sequences ascend in length.
        """
