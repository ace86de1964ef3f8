"""Triton kernels that make codes of finished vectors: a byte or a bit an element. One program a vector."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROUNDS = 12582912.0  # 1.5 * 2**23: added to a small float32 and taken off again, it rounds half to even


@triton.jit
def _tanh_codes_kernel(x_ptr, out_ptr, rounds: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, block)
    mask = column < width
    x = tl.load(x_ptr + row + column, mask=mask, other=0.0)
    code = (127.0 * (2.0 * tl.sigmoid(2.0 * x) - 1.0) + rounds) - rounds
    tl.store(out_ptr + row + column, code.to(tl.int8), mask=mask)


@triton.jit
def _range_codes_kernel(
    x_ptr,
    normalize_ptr,
    scalings_ptr,
    lows_ptr,
    steps_ptr,
    out_ptr,
    num_ranges: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, block)
    mask = column < width
    scaling = tl.load(normalize_ptr + row)
    which = tl.full((), 0, tl.int32)
    for index in tl.static_range(num_ranges):
        which = tl.where(tl.load(scalings_ptr + index) == scaling, index, which)
    place = row.to(tl.int64) * width + column
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    low = tl.load(lows_ptr + which * width + column, mask=mask, other=0.0)
    step = tl.load(steps_ptr + which * width + column, mask=mask, other=1.0)
    bucket = tl.minimum(tl.maximum(tl.floor(tl.div_rn(x - low, step)), 0.0), 255.0)
    tl.store(out_ptr + place, (bucket - 128.0).to(tl.int8), mask=mask)


@triton.jit
def _sign_bits_kernel(
    x_ptr, out_ptr, or_zero: tl.constexpr, width: tl.constexpr, size: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    byte = tl.arange(0, block)
    bit = tl.arange(0, 8)
    column = byte[:, None] * 8 + bit[None, :]
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0)
    positive = ((x >= 0.0) if or_zero else (x > 0.0)) & inside
    packed = tl.sum(positive.to(tl.int32) << (7 - bit)[None, :], axis=1)
    tl.store(out_ptr + row * size + byte, packed.to(tl.uint8), mask=byte < size)


def tanh_codes(x: torch.Tensor) -> torch.Tensor:
    """`Ops.tanh_codes`."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=torch.int8, device=x.device)
    _tanh_codes_kernel[(rows,)](x, out, rounds=_ROUNDS, width=width, block=triton.next_power_of_2(width), num_warps=4)
    return out


def range_codes(
    x: torch.Tensor, normalize: torch.Tensor, scalings: torch.Tensor, lows: torch.Tensor, steps: torch.Tensor
) -> torch.Tensor:
    """`Ops.range_codes`."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=torch.int8, device=x.device)
    _range_codes_kernel[(rows,)](
        x,
        normalize,
        scalings,
        lows,
        steps,
        out,
        num_ranges=len(scalings),
        width=width,
        block=triton.next_power_of_2(width),
        num_warps=4,
    )
    return out


def sign_bits(x: torch.Tensor, *, or_zero: bool) -> torch.Tensor:
    """`Ops.sign_bits`."""
    rows, width = x.shape
    size = triton.cdiv(width, 8)
    out = torch.empty((rows, size), dtype=torch.uint8, device=x.device)
    _sign_bits_kernel[(rows,)](
        x, out, or_zero=or_zero, width=width, size=size, block=triton.next_power_of_2(size), num_warps=4
    )
    return out
