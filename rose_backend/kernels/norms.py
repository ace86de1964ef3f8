"""Triton kernels, one program a token: norms with their residual, and the embedding lookup that ends in one.

Nothing here is specialised on the number of tokens: it appears only as the grid.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm(x, mask, weight_ptr, columns, eps, width: tl.constexpr):
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    return x * scale * tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    mask = columns < width
    x = tl.load(x_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
    y = _rms_norm(x, mask, weight_ptr, columns, eps, width)
    tl.store(out_ptr + row + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _embed_rms_norm_kernel(
    ids_ptr, words_ptr, weight_ptr, embedded_ptr, out_ptr, eps, width: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    mask = columns < width
    word = tl.load(ids_ptr + row).to(tl.int64) * width
    stored = tl.load(words_ptr + word + columns, mask=mask, other=0.0)
    tl.store(embedded_ptr + row * width + columns, stored, mask=mask)
    y = _rms_norm(stored.to(tl.float32), mask, weight_ptr, columns, eps, width)
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _norm_add_rms_norm_kernel(
    x_ptr, inner_ptr, residual_ptr, weight_ptr, out_ptr, eps, width: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    mask = columns < width
    x = tl.load(x_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
    total = tl.load(residual_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
    total += _rms_norm(x, mask, inner_ptr, columns, eps, width)
    tl.store(residual_ptr + row + columns, total.to(residual_ptr.dtype.element_ty), mask=mask)
    y = _rms_norm(total, mask, weight_ptr, columns, eps, width)
    tl.store(out_ptr + row + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _normalised(x, mask, weight_ptr, bias_ptr, columns, eps, width: tl.constexpr):
    mean = tl.sum(x, axis=0) / width
    centred = tl.where(mask, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    return centred * scale * weight + bias


@triton.jit
def _layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, eps, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    mask = columns < width
    x = tl.load(x_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
    y = _normalised(x, mask, weight_ptr, bias_ptr, columns, eps, width)
    tl.store(out_ptr + row + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_layer_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, eps, width: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    mask = columns < width
    x = tl.load(x_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
    y = _normalised(x, mask, weight_ptr, bias_ptr, columns, eps, width)
    tl.store(out_ptr + row + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _embed_layer_norm_kernel(
    ids_ptr,
    positions_ptr,
    words_ptr,
    places_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    eps,
    width: tl.constexpr,
    placed: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    mask = columns < width
    word = tl.load(ids_ptr + token).to(tl.int64) * width
    if placed:  # both look-ups start before either row is waited for
        place = tl.load(positions_ptr + token).to(tl.int64) * width
    x = tl.load(words_ptr + word + columns, mask=mask, other=0.0).to(tl.float32)
    if placed:
        x += tl.load(places_ptr + place + columns, mask=mask, other=0.0).to(tl.float32)
    y = _normalised(x, mask, weight_ptr, bias_ptr, columns, eps, width)
    tl.store(out_ptr + token * width + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


def _block(width: int) -> tuple[int, int]:
    """Columns a program covers, and its warps: about eight elements a thread."""
    block = triton.next_power_of_2(width)
    return block, max(1, min(8, block // 256))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / rms(x) * weight`; `[tokens, hidden]`, contiguous."""
    out = torch.empty_like(x)
    block, warps = _block(x.shape[1])
    _rms_norm_kernel[(len(x),)](x, weight, out, eps, width=x.shape[1], block=block, num_warps=warps)
    return out


def norm_add_rms_norm(
    x: torch.Tensor, inner: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """`Ops.norm_add_rms_norm`, the result in place of `x`; inputs are contiguous."""
    block, warps = _block(x.shape[1])
    _norm_add_rms_norm_kernel[(len(x),)](
        x, inner, residual, weight, x, eps, width=x.shape[1], block=block, num_warps=warps
    )
    return x


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """`LayerNorm(x)`; `[tokens, hidden]`, contiguous."""
    out = torch.empty_like(x)
    block, warps = _block(x.shape[1])
    _layer_norm_kernel[(len(x),)](x, weight, bias, out, eps, width=x.shape[1], block=block, num_warps=warps)
    return out


def embed_rms_norm(
    input_ids: torch.Tensor, words: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`Ops.embed_rms_norm`; ids must be inside the table, which admission checks."""
    width = words.shape[1]
    embedded = torch.empty((len(input_ids), width), dtype=words.dtype, device=words.device)
    out = torch.empty_like(embedded)
    block, warps = _block(width)
    _embed_rms_norm_kernel[(len(input_ids),)](
        input_ids, words, weight, embedded, out, eps, width=width, block=block, num_warps=warps
    )
    return embedded, out


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """`Ops.add_layer_norm`; inputs are contiguous."""
    block, warps = _block(x.shape[1])
    _add_layer_norm_kernel[(len(x),)](x, residual, weight, bias, x, eps, width=x.shape[1], block=block, num_warps=warps)
    return x


def embed_layer_norm(
    input_ids: torch.Tensor,
    positions: torch.Tensor | None,
    words: torch.Tensor,
    places: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """`Ops.embed_layer_norm`; ids and positions must be inside their tables, which admission checks."""
    width = words.shape[1]
    out = torch.empty((len(input_ids), width), dtype=words.dtype, device=words.device)
    block, warps = _block(width)
    placed = positions is not None and places is not None
    _embed_layer_norm_kernel[(len(input_ids),)](
        input_ids, positions if placed else input_ids, words, places if placed else words, weight, bias, out, eps,
        width=width, placed=placed, block=block, num_warps=warps,
    )  # fmt: skip
    return out
