"""Our own kernel for batches of few tokens and middling lengths, where it fills the card and larger blocks do not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.attention.base import BackendUnavailableError, Geometry, RaggedLayout, rotate
from rose_backend.kernels.ops import Ops, Rotation
from rose_backend.kernels.stream_attention import stream_attention


@dataclass(frozen=True)
class TritonStreamBackend:
    """See `AttentionBackend`.

    Raises:
        BackendUnavailableError: a card without bulk copies, or a dtype, head size or mask the kernel does not do.
    """

    geometry: Geometry
    ops: Ops
    name: str = "triton_stream"
    capturable: bool = True
    longest: int | None = None
    shares_workspace: bool = False

    def __post_init__(self) -> None:
        geometry = self.geometry
        if geometry.device.type != "cuda" or torch.cuda.get_device_capability(geometry.device) < (9, 0):
            raise BackendUnavailableError("triton_stream: needs a Hopper or newer CUDA device")
        if geometry.dtype not in (torch.bfloat16, torch.float16):
            raise BackendUnavailableError(f"triton_stream: not made for {geometry.dtype}")
        if geometry.head_dim not in (32, 64, 128):
            raise BackendUnavailableError(f"triton_stream: not made for head_dim {geometry.head_dim}")
        if geometry.window is not None:
            raise BackendUnavailableError("triton_stream: not made for a sliding window")

    def open(self, layout: RaggedLayout) -> TritonStreamAttention:
        """See `AttentionBackend`."""
        return TritonStreamAttention(self.geometry, self.ops, layout)


class TritonStreamAttention:
    """See `Attention`."""

    def __init__(self, geometry: Geometry, ops: Ops, layout: RaggedLayout) -> None:
        self._geometry = geometry
        self._ops = ops
        self._layout = layout

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """Nothing: the kernel reads the device's offsets. See `Attention`."""

    def __call__(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """See `Attention`."""
        geometry, layout = self._geometry, self._layout
        rotate(self._ops, geometry, qkv, rotation)
        heads, kv_heads = geometry.num_heads, geometry.num_kv_heads
        return stream_attention(
            qkv, layout.cu_seqlens, layout.max_seqlen, heads, kv_heads, geometry.scale, causal=geometry.causal
        )
