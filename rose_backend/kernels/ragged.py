"""Triton kernels over `cu_seqlens`: positions, pooling, and scaling to unit length."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rose_backend.config import PoolingMode

_TOKENS_AT_ONCE = 128
_COLUMNS_AT_ONCE = 32
_POSITIONS_AT_ONCE = 1024
_SMALLEST_NORM = 1e-12


@triton.jit
def _positions_kernel(
    cu_seqlens_ptr, ids_ptr, out_ptr, pad, limit: tl.constexpr, counted: tl.constexpr, block: tl.constexpr
):
    sequence = tl.program_id(0)
    start = tl.load(cu_seqlens_ptr + sequence)
    stop = tl.load(cu_seqlens_ptr + sequence + 1)
    before = tl.zeros((1,), tl.int32)  # tokens that count, in earlier blocks
    for first in range(start, stop, block):
        token = first + tl.arange(0, block)
        if counted:
            counts = (tl.load(ids_ptr + token, mask=token < stop, other=pad) != pad).to(tl.int32)
            place = (before + tl.cumsum(counts, axis=0)) * counts + pad
            before += tl.sum(counts, axis=0)
        else:
            place = token - start
        tl.store(out_ptr + token, tl.minimum(place, limit - 1), mask=token < stop)


@triton.jit
def _pool_kernel(
    hidden_ptr,
    cu_seqlens_ptr,
    out_ptr,
    width: tl.constexpr,
    mode: tl.constexpr,
    tokens: tl.constexpr,
    columns: tl.constexpr,
):
    sequence = tl.program_id(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    mask = column < width
    start = tl.load(cu_seqlens_ptr + sequence)
    stop = tl.load(cu_seqlens_ptr + sequence + 1)
    if mode == 0:  # mean
        total = tl.zeros((tokens, columns), tl.float32)
        for first in range(start, stop, tokens):
            token = first + tl.arange(0, tokens)
            place = hidden_ptr + token.to(tl.int64)[:, None] * width + column[None, :]
            total += tl.load(place, mask=(token < stop)[:, None] & mask[None, :], other=0.0).to(tl.float32)
        # An unused row of a padded batch has no tokens; its value is never read, but it should not be NaN.
        pooled = tl.sum(total, axis=0) / tl.maximum(stop - start, 1).to(tl.float32)
    else:
        token = start if mode == 1 else tl.maximum(stop - 1, 0)
        token = tl.where(stop > start, token, 0).to(tl.int64)
        pooled = tl.load(hidden_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + sequence.to(tl.int64) * width + column, pooled, mask=mask)


@triton.jit
def _normalize_kernel(x_ptr, wanted_ptr, least, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, block)
    mask = column < width
    place = x_ptr + row.to(tl.int64) * width + column
    x = tl.load(place, mask=mask, other=0.0)
    norm = tl.maximum(tl.sqrt(tl.sum(x * x, axis=0)), least)
    norm = tl.where(tl.load(wanted_ptr + row) != 0, norm, 1.0)
    tl.store(place, x / norm, mask=mask)


def positions(cu_seqlens: torch.Tensor, num_tokens: int, limit: int) -> torch.Tensor:
    """`Ops.positions`."""
    out = torch.empty((num_tokens,), dtype=torch.int32, device=cu_seqlens.device)
    _positions_kernel[(len(cu_seqlens) - 1,)](
        cu_seqlens, cu_seqlens, out, 0, limit=limit, counted=False, block=_POSITIONS_AT_ONCE, num_warps=4
    )
    return out


def counted_positions(input_ids: torch.Tensor, cu_seqlens: torch.Tensor, pad: int, limit: int) -> torch.Tensor:
    """`Ops.counted_positions`."""
    out = torch.empty_like(input_ids)
    _positions_kernel[(len(cu_seqlens) - 1,)](
        cu_seqlens, input_ids, out, pad, limit=limit, counted=True, block=_POSITIONS_AT_ONCE, num_warps=4
    )
    return out


def pool(hidden: torch.Tensor, cu_seqlens: torch.Tensor, normalize: torch.Tensor, mode: PoolingMode) -> torch.Tensor:
    """`Ops.pool`; `hidden` is contiguous."""
    sequences, width = len(normalize), hidden.shape[1]
    out = torch.empty((sequences, width), dtype=torch.float32, device=hidden.device)
    code = (PoolingMode.MEAN, PoolingMode.CLS, PoolingMode.LAST).index(mode)
    _pool_kernel[(sequences, triton.cdiv(width, _COLUMNS_AT_ONCE))](
        hidden, cu_seqlens, out, width=width, mode=code, tokens=_TOKENS_AT_ONCE, columns=_COLUMNS_AT_ONCE, num_warps=4
    )
    _normalize_kernel[(sequences,)](
        out, normalize, _SMALLEST_NORM, width=width, block=triton.next_power_of_2(width), num_warps=4
    )
    return out
