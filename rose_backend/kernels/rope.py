"""Triton kernel: RMSNorm (of some models) and rotation of every query and key head, in place on the projection.

The rotation pairs dimension i with i + head_dim / 2 (GPT-NeoX style), as all Qwen, Llama and Gemma models do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_HEADS_PER_PROGRAM = 8


@triton.jit
def _qk_norm_rope_kernel(
    qkv_ptr,
    weights_ptr,
    cos_sin_ptr,
    positions_ptr,
    eps,
    row_width: tl.constexpr,
    num_q: tl.constexpr,
    num_qk: tl.constexpr,
    half: tl.constexpr,
    norms: tl.constexpr,
    heads: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * heads + tl.arange(0, heads)
    column = tl.arange(0, half)
    place = qkv_ptr + token * row_width + head[:, None] * (2 * half) + column[None, :]
    mask = (head < num_qk)[:, None] & (column >= 0)[None, :]
    low = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(place + half, mask=mask, other=0.0).to(tl.float32)
    if norms:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * half) + eps)
        weight = weights_ptr + (head >= num_q).to(tl.int32)[:, None] * (2 * half) + column[None, :]
        low = low * scale[:, None] * tl.load(weight).to(tl.float32)
        high = high * scale[:, None] * tl.load(weight + half).to(tl.float32)
    angle = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * half) + column
    cos = tl.load(angle)[None, :]
    sin = tl.load(angle + half)[None, :]
    tl.store(place, (low * cos - high * sin).to(qkv_ptr.dtype.element_ty), mask=mask)
    tl.store(place + half, (high * cos + low * sin).to(qkv_ptr.dtype.element_ty), mask=mask)


def qk_norm_rope(
    qkv: torch.Tensor,
    norm_weights: torch.Tensor | None,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> None:
    """`Ops.qk_norm_rope`; `head_dim / 2` is a power of two."""
    num_qk = num_heads + num_kv_heads
    _qk_norm_rope_kernel[(len(qkv), triton.cdiv(num_qk, _HEADS_PER_PROGRAM))](
        qkv, qkv if norm_weights is None else norm_weights, cos_sin, positions, eps,
        row_width=qkv.shape[1], num_q=num_heads, num_qk=num_qk, half=cos_sin.shape[1] // 2,
        norms=norm_weights is not None, heads=_HEADS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip
