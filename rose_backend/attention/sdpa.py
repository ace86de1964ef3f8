"""Attention for the CPU: neighbours of equal length share one dense call, so nothing is padded or masked.

Measured against a call per sequence, padding with a mask, a block-diagonal mask and nested tensors: equal-length
groups were fastest or level on every mix of lengths. On a GPU it serves float32, eagerly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rose_backend.attention.base import Geometry, RaggedLayout, SplitAttention
from rose_backend.kernels.ops import Ops

# Up to here two batched products and a softmax take half the time of the fused call (64 x 16 tokens, 12 heads of 32:
# 1.3 against 3.9 ms; level at 64 tokens), whose blocks are made for long sequences.
_SHORT = 64


@dataclass(frozen=True)
class SdpaBackend:
    """`scaled_dot_product_attention` on groups of equally long sequences; they should be neighbours."""

    geometry: Geometry
    ops: Ops
    name: str = "sdpa"
    capturable: bool = False
    longest: int | None = None
    shares_workspace: bool = False

    def open(self, layout: RaggedLayout) -> SdpaAttention:  # noqa: ARG002 (works from each batch's own lengths)
        """See `AttentionBackend`."""
        return SdpaAttention(self.geometry, self.ops)


class SdpaAttention(SplitAttention):
    """See `Attention`."""

    def __init__(self, geometry: Geometry, ops: Ops) -> None:
        super().__init__(geometry, ops)
        self._causal = geometry.causal
        self._grouped = geometry.num_heads != geometry.num_kv_heads
        self._plain = not self._causal and not self._grouped
        self._window = geometry.window
        self._scale = geometry.scale
        self._stop = 0  # of the last sequence
        self._groups: list[tuple[int, int, int]] = []  # first token, sequences, tokens of each
        self._masks: dict[int, torch.Tensor] = {}  # by length: what the window leaves, for all layers of a batch

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """Find the runs of equal length. See `Attention`. What comes after the last offset is padding."""
        self._masks.clear()
        lengths, counts = torch.unique_consecutive(cu_seqlens.diff(), return_counts=True)
        starts = (lengths * counts).cumsum(0) - lengths * counts
        self._stop = int(cu_seqlens[-1])
        self._groups = [
            (start, count, length)
            for start, count, length in zip(starts.tolist(), counts.tolist(), lengths.tolist(), strict=True)
            if length > 0
        ]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `SplitAttention`."""
        out = torch.empty_like(q)
        out[self._stop :] = 0
        for start, count, length in self._groups:
            # [tokens, heads, head_dim] -> [count, heads, length, head_dim], as views
            rows = slice(start, start + count * length)
            dense_q, dense_k, dense_v = (x[rows].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
            mask = self._seen(length, q.device)
            if self._plain and mask is None and count > 1 and length <= _SHORT:
                scores = (dense_q * self._scale) @ dense_k.transpose(-1, -2)
                mixed = scores.softmax(dim=-1) @ dense_v
            else:
                mixed = F.scaled_dot_product_attention(
                    dense_q,
                    dense_k,
                    dense_v,
                    attn_mask=mask,
                    is_causal=self._causal and mask is None and length > 1,
                    scale=self._scale,
                    enable_gqa=self._grouped,
                )
            out[rows].view(count, length, *q.shape[1:]).copy_(mixed.transpose(1, 2))
        return out

    def _seen(self, length: int, device: torch.device) -> torch.Tensor | None:
        """`[length, length]` bool: which keys (columns) each query sees through the window; None: all it may see."""
        if self._window is None:
            return None
        left, right = self._window
        if length <= left + 1 and (self._causal or length <= right + 1):
            return None
        if length not in self._masks:
            place = torch.arange(length, device=device)
            ahead = place[None, :] - place[:, None]
            self._masks[length] = (ahead >= -left) & (ahead <= (0 if self._causal else right))
        return self._masks[length]
