"""Triton kernels: the product of gated projections (SwiGLU, GeGLU and their kin), and exact GELU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rose_backend.kernels.ops import Nonlinearity

_BLOCK = 1024


@triton.jit
def nonlinear(x, kind: tl.constexpr):
    """`Nonlinearity` by its value, in float32."""
    if kind == "silu":
        y = x * tl.sigmoid(x)
    elif kind == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif kind == "gelu_tanh":
        # 0.5 * (1 + tanh(u)) is sigmoid(2 * u); u = sqrt(2 / pi) * (x + 0.044715 * x ** 3)
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        tl.static_assert(kind == "relu")
        y = tl.maximum(x, 0.0)
    return y


@triton.jit
def _gated_kernel(gate_up_ptr, out_ptr, width: tl.constexpr, kind: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    gate = tl.load(gate_up_ptr + token * (2 * width) + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * (2 * width) + width + column, mask=mask, other=0.0).to(tl.float32)
    y = nonlinear(gate, kind) * up
    tl.store(out_ptr + token * width + column, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_kernel(x_ptr, width: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    x = tl.load(x_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(x_ptr + token * width + column, y.to(x_ptr.dtype.element_ty), mask=mask)


def gated(gate_up: torch.Tensor, nonlinearity: Nonlinearity) -> torch.Tensor:
    """What `Ops.glu` makes of the product `[tokens, 2 * n]`, which is contiguous; `[tokens, n]`."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, triton.cdiv(width, _BLOCK))
    _gated_kernel[grid](gate_up, out, width=width, kind=nonlinearity.value, block=_BLOCK, num_warps=4)
    return out


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Exact (erf) GELU, in place; the input is contiguous."""
    tokens, width = x.shape
    _gelu_kernel[(tokens, triton.cdiv(width, _BLOCK))](x, width=width, block=_BLOCK, num_warps=4)
    return x
