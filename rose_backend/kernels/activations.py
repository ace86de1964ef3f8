"""Triton kernels: SwiGLU's product and exact GELU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, width: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    gate = tl.load(gate_up_ptr + token * (2 * width) + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * (2 * width) + width + column, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * width + column, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_kernel(x_ptr, width: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    x = tl.load(x_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(x_ptr + token * width + column, y.to(x_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`Ops.silu_mul`; the input is contiguous."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul_kernel[(tokens, triton.cdiv(width, _BLOCK))](gate_up, out, width=width, block=_BLOCK, num_warps=4)
    return out


def gelu(x: torch.Tensor) -> torch.Tensor:
    """`Ops.gelu`, in place; the input is contiguous."""
    tokens, width = x.shape
    _gelu_kernel[(tokens, triton.cdiv(width, _BLOCK))](x, width=width, block=_BLOCK, num_warps=4)
    return x
