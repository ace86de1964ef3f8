"""FlashAttention 4 (`flash-attn-4`, CuTe DSL): ragged, capturable, nothing to plan; Hopper and Blackwell.

Kernels are compiled when first called, a few seconds each, and kept in its own cache folder; opening a layout
calls them once, so that compilation happens at start-up or capture and never inside a served batch.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.attention.base import BackendUnavailableError, Geometry, RaggedLayout, SplitAttention
from rose_backend.kernels.ops import Ops

_LEAST_CAPABILITY = (9, 0)
_MANY_SEQUENCES = 256  # above it the package picks another kernel, which is compiled apart


@functools.cache
def _varlen_function() -> Callable[..., Any]:
    from flash_attn.cute import flash_attn_varlen_func  # imported late: it takes seconds

    function: Callable[..., Any] = flash_attn_varlen_func
    return function


@dataclass(frozen=True)
class FlashAttention4Backend:
    """`flash_attn.cute.flash_attn_varlen_func`.

    Raises:
        BackendUnavailableError: package not installed, card too old, or a dtype or head size it does not have.
    """

    geometry: Geometry
    ops: Ops
    name: str = "flash_attention_4"
    capturable: bool = True
    longest: int | None = None
    shares_workspace: bool = False

    def __post_init__(self) -> None:
        geometry = self.geometry
        if geometry.device.type != "cuda":
            raise BackendUnavailableError("flash_attention_4: needs a CUDA device")
        if importlib.util.find_spec("flash_attn") is None:
            raise BackendUnavailableError("flash_attention_4: pip install --pre flash-attn-4")
        if torch.cuda.get_device_capability(geometry.device) < _LEAST_CAPABILITY:
            raise BackendUnavailableError("flash_attention_4: needs a Hopper or newer GPU")
        if geometry.dtype not in (torch.bfloat16, torch.float16):
            raise BackendUnavailableError(f"flash_attention_4: no kernel for {geometry.dtype}")
        if geometry.head_dim > 256 or geometry.head_dim % 8:
            raise BackendUnavailableError(f"flash_attention_4: no kernel for head_dim {geometry.head_dim}")
        try:
            _varlen_function()
        except ImportError as cause:
            raise BackendUnavailableError(f"flash_attention_4: {cause}") from cause

    def open(self, layout: RaggedLayout) -> FlashAttention4Attention:
        """See `AttentionBackend`."""
        _compile(self.geometry, layout.num_sequences > _MANY_SEQUENCES)
        return FlashAttention4Attention(self.geometry, self.ops, layout)


class FlashAttention4Attention(SplitAttention):
    """See `Attention`."""

    def __init__(self, geometry: Geometry, ops: Ops, layout: RaggedLayout) -> None:
        super().__init__(geometry, ops)
        self._cu_seqlens = layout.cu_seqlens

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `SplitAttention`."""
        return _call(self._geometry, self._cu_seqlens, q, k, v)


def _call(
    geometry: Geometry, cu_seqlens: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    out: torch.Tensor = _varlen_function()(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        softmax_scale=geometry.scale,
        causal=geometry.causal,
        window_size=geometry.window or (None, None),
    )[0]
    return out


@functools.cache
def _compile(geometry: Geometry, many_sequences: bool) -> None:
    """Run one tiny batch, which compiles the kernel (or loads it from its cache)."""
    count = _MANY_SEQUENCES + 1 if many_sequences else 2
    qkv = torch.randn(count, sum(geometry.heads), geometry.head_dim, device=geometry.device).to(geometry.dtype)
    q, k, v = qkv.split(geometry.heads, dim=1)
    cu_seqlens = torch.arange(count + 1, dtype=torch.int32, device=geometry.device)
    _call(geometry, cu_seqlens, q, k, v)
