"""Triton kernels over `cu_seqlens`: positions, token types, pooling, and scaling to unit length."""

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


@triton.jit(do_not_specialize=["count"])
def _token_types_kernel(cu_seqlens_ptr, type_from_ptr, out_ptr, count, block: tl.constexpr):
    sequence = tl.program_id(0)
    start = tl.load(cu_seqlens_ptr + sequence)
    stop = tl.load(cu_seqlens_ptr + sequence + 1)
    # The sequence of padding may stand behind the last one that has a number.
    begin = tl.load(type_from_ptr + sequence, mask=sequence < count, other=0)
    begin = tl.where(begin > 0, start + begin, stop)
    for first in range(start, stop, block):
        token = first + tl.arange(0, block)
        tl.store(out_ptr + token, (token >= begin).to(tl.int32), mask=token < stop)


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
def _pool_modes_kernel(
    hidden_ptr,
    cu_seqlens_ptr,
    pool_from_ptr,
    out_ptr,
    width: tl.constexpr,
    num_modes: tl.constexpr,
    cls_at: tl.constexpr,
    max_at: tl.constexpr,
    mean_at: tl.constexpr,
    mean_sqrt_at: tl.constexpr,
    weighted_at: tl.constexpr,
    last_at: tl.constexpr,
    skips: tl.constexpr,
    tokens: tl.constexpr,
    columns: tl.constexpr,
):
    """A mode's `_at` is its place among the modes, -1 for one that is not wanted."""
    sequence = tl.program_id(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    mask = column < width
    begin = tl.load(cu_seqlens_ptr + sequence)
    stop = tl.load(cu_seqlens_ptr + sequence + 1)
    start = begin
    if skips:
        start = tl.minimum(begin + tl.maximum(tl.load(pool_from_ptr + sequence), 0), stop)
    total = tl.zeros((tokens, columns), tl.float32)
    weighted = tl.zeros((tokens, columns), tl.float32)
    largest = tl.full((tokens, columns), float("-inf"), tl.float32)
    if max_at >= 0 or mean_at >= 0 or mean_sqrt_at >= 0 or weighted_at >= 0:
        for first in range(start, stop, tokens):
            token = first + tl.arange(0, tokens)
            inside = (token < stop)[:, None] & mask[None, :]
            place = hidden_ptr + token.to(tl.int64)[:, None] * width + column[None, :]
            x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
            if mean_at >= 0 or mean_sqrt_at >= 0:
                total += x
            if weighted_at >= 0:
                weighted += x * (token - begin + 1).to(tl.float32)[:, None]
            if max_at >= 0:
                largest = tl.maximum(largest, tl.where(inside, x, float("-inf")))
    some = stop > start
    count = tl.maximum(stop - start, 1).to(tl.float32)
    row = out_ptr + sequence.to(tl.int64) * (num_modes * width) + column
    if cls_at >= 0:
        # An unused row of a padded batch has no tokens and starts where they end.
        token = tl.where(some, start, tl.where(stop > begin, begin, 0)).to(tl.int64)
        x = tl.load(hidden_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(row + cls_at * width, x, mask=mask)
    if max_at >= 0:
        tl.store(row + max_at * width, tl.where(some, tl.max(largest, axis=0), 0.0), mask=mask)
    if mean_at >= 0:
        tl.store(row + mean_at * width, tl.sum(total, axis=0) / count, mask=mask)
    if mean_sqrt_at >= 0:
        tl.store(row + mean_sqrt_at * width, tl.sum(total, axis=0) / tl.sqrt(count), mask=mask)
    if weighted_at >= 0:
        # The sum of the whole numbers from the first pooled token's to the last one's.
        lowest, highest = (start - begin + 1).to(tl.float32), (stop - begin).to(tl.float32)
        weights = tl.maximum(0.5 * (lowest + highest) * (highest - lowest + 1.0), 1.0)
        tl.store(row + weighted_at * width, tl.sum(weighted, axis=0) / weights, mask=mask)
    if last_at >= 0:
        token = tl.maximum(stop - 1, 0).to(tl.int64)
        x = tl.load(hidden_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(row + last_at * width, tl.where(some, x, 0.0), mask=mask)


@triton.jit
def _pool_spans_kernel(
    hidden_ptr, starts_ptr, stops_ptr, out_ptr, width: tl.constexpr, tokens: tl.constexpr, columns: tl.constexpr
):
    span = tl.program_id(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    mask = column < width
    start = tl.load(starts_ptr + span)
    stop = tl.load(stops_ptr + span)
    total = tl.zeros((tokens, columns), tl.float32)
    for first in range(start, stop, tokens):
        token = first + tl.arange(0, tokens)
        place = hidden_ptr + token.to(tl.int64)[:, None] * width + column[None, :]
        total += tl.load(place, mask=(token < stop)[:, None] & mask[None, :], other=0.0).to(tl.float32)
    pooled = tl.sum(total, axis=0) / tl.maximum(stop - start, 1).to(tl.float32)
    tl.store(out_ptr + span.to(tl.int64) * width + column, pooled, mask=mask)


@triton.jit
def _normalize_kernel(x_ptr, wanted_ptr, least, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, block)
    mask = column < width
    place = x_ptr + row.to(tl.int64) * width + column
    x = tl.load(place, mask=mask, other=0.0)
    wanted = tl.load(wanted_ptr + row)
    counted = tl.where(column < tl.where(wanted < 0, -wanted, width), x, 0.0)
    norm = tl.maximum(tl.sqrt(tl.sum(counted * counted, axis=0)), least)
    norm = tl.where(wanted != 0, norm, 1.0)
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


def token_types(cu_seqlens: torch.Tensor, type_from: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """`Ops.token_types`."""
    out = torch.empty((num_tokens,), dtype=torch.int32, device=cu_seqlens.device)
    _token_types_kernel[(len(cu_seqlens) - 1,)](
        cu_seqlens, type_from, out, len(type_from), block=_POSITIONS_AT_ONCE, num_warps=4
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
    return scale(out, normalize)


def pool_modes(
    hidden: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_sequences: int,
    modes: tuple[PoolingMode, ...],
    pool_from: torch.Tensor | None,
) -> torch.Tensor:
    """`Ops.pool_modes`; `hidden` is contiguous."""
    width = hidden.shape[1]
    out = torch.empty((num_sequences, len(modes) * width), dtype=torch.float32, device=hidden.device)
    cls_at, max_at, mean_at, mean_sqrt_at, weighted_at, last_at = (
        modes.index(mode) if mode in modes else -1 for mode in PoolingMode
    )
    _pool_modes_kernel[(num_sequences, triton.cdiv(width, _COLUMNS_AT_ONCE))](
        hidden,
        cu_seqlens,
        cu_seqlens if pool_from is None else pool_from,
        out,
        width=width,
        num_modes=len(modes),
        cls_at=cls_at,
        max_at=max_at,
        mean_at=mean_at,
        mean_sqrt_at=mean_sqrt_at,
        weighted_at=weighted_at,
        last_at=last_at,
        skips=pool_from is not None,
        tokens=_TOKENS_AT_ONCE,
        columns=_COLUMNS_AT_ONCE,
        num_warps=4,
    )
    return out


def pool_spans(hidden: torch.Tensor, starts: torch.Tensor, stops: torch.Tensor) -> torch.Tensor:
    """`Ops.pool_spans`."""
    spans, width = len(starts), hidden.shape[1]
    out = torch.empty((spans, width), dtype=torch.float32, device=hidden.device)
    _pool_spans_kernel[(spans, triton.cdiv(width, _COLUMNS_AT_ONCE))](
        hidden, starts, stops, out, width=width, tokens=_TOKENS_AT_ONCE, columns=_COLUMNS_AT_ONCE, num_warps=4
    )
    return out


def scale(x: torch.Tensor, normalize: torch.Tensor) -> torch.Tensor:
    """`Ops.scale`, in place."""
    rows, width = x.shape
    _normalize_kernel[(rows,)](
        x, normalize, _SMALLEST_NORM, width=width, block=triton.next_power_of_2(width), num_warps=4
    )
    return x
