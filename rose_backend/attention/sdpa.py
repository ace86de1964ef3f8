"""Attention for the CPU: neighbours of equal length share one dense call, so nothing is padded or masked.

Measured against a call per sequence, padding with a mask, a block-diagonal mask and nested tensors: equal-length
groups were fastest or level on every mix of lengths (docs/cpu.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from rose_backend.attention.base import Attend
from rose_backend.core import Int32Array


@dataclass(frozen=True)
class SdpaAttention:
    """Bidirectional `scaled_dot_product_attention` on groups of equally long sequences."""

    name: str = "sdpa"

    def plan(self, cu_seqlens: Int32Array) -> Attend:
        """Find the runs of equal length. See `AttentionBackend.plan`."""
        lengths = np.diff(cu_seqlens)
        first = np.flatnonzero(np.diff(lengths, prepend=0))  # every length is >= 1, so sequence 0 starts a run
        counts = np.diff(first, append=len(lengths))
        groups = [
            (int(cu_seqlens[index]), int(count), int(lengths[index]))
            for index, count in zip(first, counts, strict=True)
        ]

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            for start, count, length in groups:
                # [tokens, heads, head_dim] -> [count, heads, length, head_dim], as views
                rows = slice(start, start + count * length)
                dense_q, dense_k, dense_v = (
                    x[rows].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
                )
                mixed = F.scaled_dot_product_attention(dense_q, dense_k, dense_v)
                out[rows].view(count, length, *q.shape[1:]).copy_(mixed.transpose(1, 2))
            return out

        return attend
