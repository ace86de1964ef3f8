"""Triton kernels: large products that end in the step which would otherwise read their result again.

From about a thousand tokens on, gate and up projections are written once as SwiGLU's product instead of being
written, read and halved; queries and keys leave their projection normed and rotated. Tiles arrive through tensor
descriptors (the bulk copy engine of Hopper and later), and programs are ordered so that neighbours share weights in
the L2 cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

_ROWS, _COLUMNS, _INNER, _GROUP = 128, 128, 64, 16


@triton.jit
def _tile_of(program, num_row_tiles, num_column_tiles: tl.constexpr, group: tl.constexpr):
    in_group = group * num_column_tiles
    first = (program // in_group) * group
    size = min(num_row_tiles - first, group)
    return first + (program % in_group) % size, (program % in_group) // size


@triton.jit
def _swiglu_kernel(
    x_tiles, weight_tiles, out_ptr, num_rows, width: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, inner: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    row_tile, column_tile = _tile_of(tl.program_id(0), tl.cdiv(num_rows, rows), width // columns, group)
    gate = tl.zeros((rows, columns), tl.float32)
    up = tl.zeros((rows, columns), tl.float32)
    for k in range(0, depth, inner):
        x = x_tiles.load([row_tile * rows, k])
        gate = tl.dot(x, weight_tiles.load([column_tile * columns, k]).T, gate)
        up = tl.dot(x, weight_tiles.load([width + column_tile * columns, k]).T, up)
    y = gate * tl.sigmoid(gate) * up
    row = row_tile * rows + tl.arange(0, rows)
    column = column_tile * columns + tl.arange(0, columns)
    place = out_ptr + row[:, None].to(tl.int64) * width + column[None, :]
    tl.store(place, y.to(out_ptr.dtype.element_ty), mask=(row < num_rows)[:, None])


@triton.jit
def _rotated_projection_kernel(
    x_tiles, weight_tiles, norm_weights_ptr, cos_sin_ptr, positions_ptr, out_ptr, num_rows, eps, depth: tl.constexpr,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, half: tl.constexpr, rows: tl.constexpr, inner: tl.constexpr,
    group: tl.constexpr,
):  # fmt: skip
    all_heads: tl.constexpr = num_heads + 2 * num_kv_heads
    row_tile, head = _tile_of(tl.program_id(0), tl.cdiv(num_rows, rows), all_heads, group)
    low = tl.zeros((rows, half), tl.float32)
    high = tl.zeros((rows, half), tl.float32)
    for k in range(0, depth, inner):
        x = x_tiles.load([row_tile * rows, k])
        low = tl.dot(x, weight_tiles.load([head * 2 * half, k]).T, low)
        high = tl.dot(x, weight_tiles.load([head * 2 * half + half, k]).T, high)
    row = row_tile * rows + tl.arange(0, rows)
    column = tl.arange(0, half)
    mask = (row < num_rows)[:, None]
    if head < num_heads + num_kv_heads:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * half) + eps)[:, None]
        weights = norm_weights_ptr + (head >= num_heads).to(tl.int32) * (2 * half) + column
        low = low * scale * tl.load(weights).to(tl.float32)[None, :]
        high = high * scale * tl.load(weights + half).to(tl.float32)[None, :]
        position = tl.load(positions_ptr + row, mask=row < num_rows, other=0).to(tl.int64)
        angles = cos_sin_ptr + position[:, None] * (2 * half) + column[None, :]
        cos, sin = tl.load(angles), tl.load(angles + half)
        low, high = low * cos - high * sin, high * cos + low * sin
    place = out_ptr + row[:, None].to(tl.int64) * (all_heads * 2 * half) + head * (2 * half) + column[None, :]
    tl.store(place, low.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(place + half, high.to(out_ptr.dtype.element_ty), mask=mask)


def swiglu(x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(x @ gate.T) * (x @ up.T)`.

    Args:
        x: `[tokens, depth]`, contiguous; depth is a multiple of 64.
        gate_up: `[2 * width, depth]`, gate rows first; width is a multiple of 128.
    """
    tokens, depth, width = len(x), x.shape[1], len(gate_up) // 2
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    _swiglu_kernel[(triton.cdiv(tokens, _ROWS) * (width // _COLUMNS),)](
        TensorDescriptor.from_tensor(x, [_ROWS, _INNER]), TensorDescriptor.from_tensor(gate_up, [_COLUMNS, _INNER]),
        out, tokens, width=width, depth=depth, rows=_ROWS, columns=_COLUMNS, inner=_INNER, group=_GROUP, num_warps=8,
        num_stages=4,
    )  # fmt: skip
    return out


def rotated_projection(
    x: torch.Tensor,
    weight: torch.Tensor,
    norm_weights: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> torch.Tensor:
    """`x @ weight.T` with `Ops.qk_norm_rope` done to query and key heads before they are written.

    Args:
        x: `[tokens, depth]`, contiguous; depth is a multiple of 64.
        weight: `[(num_heads + 2 * num_kv_heads) * head_dim, depth]`; `head_dim / 2` is a power of two.
        norm_weights: `[2, head_dim]`.
        cos_sin: `[max_positions, head_dim]` float32.
        positions: `[tokens]` int32.
        num_heads: query heads.
        num_kv_heads: key heads, and as many value heads.
        eps: of the norm.
    """
    tokens, depth = x.shape
    all_heads, half = num_heads + 2 * num_kv_heads, norm_weights.shape[1] // 2
    out = torch.empty((tokens, len(weight)), dtype=x.dtype, device=x.device)
    _rotated_projection_kernel[(triton.cdiv(tokens, _ROWS) * all_heads,)](
        TensorDescriptor.from_tensor(x, [_ROWS, _INNER]), TensorDescriptor.from_tensor(weight, [half, _INNER]),
        norm_weights, cos_sin, positions, out, tokens, eps, depth=depth, num_heads=num_heads,
        num_kv_heads=num_kv_heads, half=half, rows=_ROWS, inner=_INNER, group=_GROUP, num_warps=8, num_stages=4,
    )  # fmt: skip
    return out
