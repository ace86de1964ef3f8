"""Triton kernel: a large product that ends in the step which would otherwise read its result again.

From about a thousand tokens on, gate and up projections are written once as SwiGLU's product instead of being
written, read and halved. Tiles arrive through tensor descriptors (the bulk copy engine of Hopper and later), and
programs are ordered so that neighbours share weights in the L2 cache.
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
