"""Triton kernels: matrix products that do more than cuBLAS offers, or do it for few tokens.

With up to a hundred tokens a product reads every weight once and computes little: cuBLAS takes two to three times
as long as the read. Here narrow column blocks (and, where the columns are few, splits of the inner dimension) put
enough loads in flight on every multiprocessor. What comes next is fused: SwiGLU in the product's own epilogue, the
sum over splits in the norm that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from rose_backend.kernels.activations import nonlinear
from rose_backend.kernels.ops import Nonlinearity


@dataclass(frozen=True)
class Tiling:
    """How a product is cut up: rows, columns and inner elements of a tile, splits, warps, pipeline depth."""

    rows: int
    columns: int
    inner: int
    splits: int
    warps: int
    stages: int


@triton.jit
def _linear_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, num_rows, width: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, inner: tl.constexpr, splits: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    split = tl.program_id(1)
    k = split * (depth // splits) + tl.arange(0, inner)
    x_place = x_ptr + row[:, None] * depth + k[None, :]
    w_place = weight_ptr + column[None, :] * depth + k[:, None]
    mask = (row < num_rows)[:, None]
    total = tl.zeros((rows, columns), tl.float32)
    for _ in range(depth // splits // inner):
        total = tl.dot(tl.load(x_place, mask=mask, other=0.0), tl.load(w_place), total)
        x_place += inner
        w_place += inner
    if biased:
        total += tl.load(bias_ptr + column).to(tl.float32)[None, :]
    place = out_ptr + (split * num_rows + row)[:, None] * width + column[None, :]
    tl.store(place, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _glu_kernel(
    x_ptr, weight_ptr, out_ptr, num_rows, width: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, inner: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    k = tl.arange(0, inner)
    x_place = x_ptr + row[:, None] * depth + k[None, :]
    gate_place = weight_ptr + column[None, :] * depth + k[:, None]
    up_place = gate_place + width * depth
    mask = (row < num_rows)[:, None]
    gate = tl.zeros((rows, columns), tl.float32)
    up = tl.zeros((rows, columns), tl.float32)
    for _ in range(depth // inner):
        x = tl.load(x_place, mask=mask, other=0.0)
        gate = tl.dot(x, tl.load(gate_place), gate)
        up = tl.dot(x, tl.load(up_place), up)
        x_place += inner
        gate_place += inner
        up_place += inner
    y = nonlinear(gate, kind) * up
    tl.store(out_ptr + row[:, None] * width + column[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sum_rms_norm_kernel(
    parts_ptr, residual_ptr, weight_ptr, out_ptr, eps, num_rows, width: tl.constexpr, block: tl.constexpr,
    splits: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    mask = column < width
    x = tl.load(residual_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(splits):
        x += tl.load(parts_ptr + (split * num_rows + token) * width + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual_ptr + token * width + column, x.to(residual_ptr.dtype.element_ty), mask=mask)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * width + column, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


def linear(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weight.T + bias`.

    Args:
        x: `[tokens, depth]`.
        weight: `[width, depth]`; the tiling divides both.
        tiling: with one split, where there is a bias.
        bias: `[width]`.

    Returns:
        `[tokens, width]`, or `[splits, tokens, width]` float32 parts of the sum where the tiling splits.
    """
    tokens, depth, width = len(x), x.shape[1], len(weight)
    if tiling.splits == 1:
        out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    else:
        out = torch.empty((tiling.splits, tokens, width), dtype=torch.float32, device=x.device)
    grid = (width // tiling.columns, tiling.splits, triton.cdiv(tokens, tiling.rows))
    _linear_kernel[grid](
        x, weight, weight if bias is None else bias, out, tokens, width=width, depth=depth, rows=tiling.rows,
        columns=tiling.columns, inner=tiling.inner, splits=tiling.splits, biased=bias is not None,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


def glu(x: torch.Tensor, gate_up: torch.Tensor, tiling: Tiling, nonlinearity: Nonlinearity) -> torch.Tensor:
    """`nonlinearity(x @ gate.T) * (x @ up.T)`.

    Args:
        x: `[tokens, depth]`.
        gate_up: `[2 * width, depth]`, gate rows first.
        tiling: columns of the result a program makes; not split.
        nonlinearity: what the gate goes through.
    """
    tokens, depth, width = len(x), x.shape[1], len(gate_up) // 2
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    _glu_kernel[(width // tiling.columns, triton.cdiv(tokens, tiling.rows))](
        x, gate_up, out, tokens, width=width, depth=depth, rows=tiling.rows, columns=tiling.columns,
        inner=tiling.inner, kind=nonlinearity.value, num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


def sum_rms_norm(parts: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add the parts of a split product into the residual, in place, and return the norm of the sum.

    Args:
        parts: `[splits, tokens, hidden]` float32.
        residual: `[tokens, hidden]`.
        weight: `[hidden]`.
        eps: of the norm.
    """
    splits, tokens, width = parts.shape
    out = torch.empty_like(residual)
    block = triton.next_power_of_2(width)
    _sum_rms_norm_kernel[(tokens,)](
        parts, residual, weight, out, eps, tokens, width=width, block=block, splits=splits,
        num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return out
