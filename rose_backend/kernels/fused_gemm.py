"""Triton kernel: a large product that ends in the step which would otherwise read its result again.

Gate and up projections are written once as their gated product instead of being written, read and halved. Tiles arrive
through tensor descriptors (the bulk copy engine of Hopper and later), and programs are ordered so that neighbours
share weights in the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from rose_backend.kernels.activations import nonlinear
from rose_backend.kernels.ops import Nonlinearity


@dataclass(frozen=True)
class FusedTiling:
    """Rows, columns of the result and inner elements of a tile, warps, pipeline depth."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


LARGE = FusedTiling(128, 128, 64, 8, 4)
SMALL = FusedTiling(64, 64, 64, 4, 3)

_GROUP = 16


@triton.jit
def _tile_of(program, num_row_tiles, num_column_tiles: tl.constexpr, group: tl.constexpr):
    in_group = group * num_column_tiles
    first = (program // in_group) * group
    size = min(num_row_tiles - first, group)
    return first + (program % in_group) % size, (program % in_group) // size


@triton.jit
def _glu_kernel(
    x_tiles, weight_tiles, out_ptr, num_rows, width: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, inner: tl.constexpr, group: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    row_tile, column_tile = _tile_of(tl.program_id(0), tl.cdiv(num_rows, rows), width // columns, group)
    gate = tl.zeros((rows, columns), tl.float32)
    up = tl.zeros((rows, columns), tl.float32)
    for k in range(0, depth, inner):
        x = x_tiles.load([row_tile * rows, k])
        gate = tl.dot(x, weight_tiles.load([column_tile * columns, k]).T, gate)
        up = tl.dot(x, weight_tiles.load([width + column_tile * columns, k]).T, up)
    y = nonlinear(gate, kind) * up
    row = row_tile * rows + tl.arange(0, rows)
    column = column_tile * columns + tl.arange(0, columns)
    place = out_ptr + row[:, None].to(tl.int64) * width + column[None, :]
    tl.store(place, y.to(out_ptr.dtype.element_ty), mask=(row < num_rows)[:, None])


def glu(x: torch.Tensor, gate_up: torch.Tensor, tiling: FusedTiling, nonlinearity: Nonlinearity) -> torch.Tensor:
    """`nonlinearity(x @ gate.T) * (x @ up.T)`.

    Args:
        x: `[tokens, depth]`, contiguous.
        gate_up: `[2 * width, depth]`, gate rows first.
        tiling: its columns divide the width, its inner elements the depth.
        nonlinearity: what the gate goes through.
    """
    tokens, depth, width = len(x), x.shape[1], len(gate_up) // 2
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    rows, columns, inner = tiling.rows, tiling.columns, tiling.inner
    _glu_kernel[(triton.cdiv(tokens, rows) * (width // columns),)](
        TensorDescriptor.from_tensor(x, [rows, inner]), TensorDescriptor.from_tensor(gate_up, [columns, inner]),
        out, tokens, width=width, depth=depth, rows=rows, columns=columns, inner=inner, group=_GROUP,
        kind=nonlinearity.value, num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out
