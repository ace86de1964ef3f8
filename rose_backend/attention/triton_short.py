"""Our own kernel for sequences of at most 128 tokens: norm, rotation and attention in one launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.attention.base import BackendUnavailableError, Geometry, RaggedLayout
from rose_backend.kernels.ops import Rotation
from rose_backend.kernels.short_attention import LONGEST, short_attention


@dataclass(frozen=True)
class TritonShortBackend:
    """See `AttentionBackend`.

    Raises:
        BackendUnavailableError: not on a GPU, or a dtype or head size the kernel does not do.
    """

    geometry: Geometry
    name: str = "triton_short"
    capturable: bool = True
    longest: int | None = LONGEST
    shares_workspace: bool = False

    def __post_init__(self) -> None:
        geometry = self.geometry
        if geometry.device.type != "cuda":
            raise BackendUnavailableError("triton_short: needs a CUDA device")
        if geometry.dtype not in (torch.bfloat16, torch.float16):
            raise BackendUnavailableError(f"triton_short: not made for {geometry.dtype}")
        if geometry.head_dim not in (32, 64, 128):
            raise BackendUnavailableError(f"triton_short: not made for head_dim {geometry.head_dim}")

    def open(self, layout: RaggedLayout) -> TritonShortAttention:
        """See `AttentionBackend`."""
        if layout.max_seqlen > LONGEST:
            raise BackendUnavailableError(f"triton_short: sequences of {layout.max_seqlen} tokens: at most {LONGEST}")
        return TritonShortAttention(self.geometry, layout)


class TritonShortAttention:
    """See `Attention`."""

    def __init__(self, geometry: Geometry, layout: RaggedLayout) -> None:
        self._geometry = geometry
        self._layout = layout

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """Nothing: the kernel reads the device's offsets. See `Attention`."""

    def __call__(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        """See `Attention`."""
        geometry, layout = self._geometry, self._layout
        return short_attention(
            qkv,
            layout.cu_seqlens,
            layout.max_seqlen,
            geometry.num_heads,
            geometry.num_kv_heads,
            geometry.scale,
            causal=geometry.causal,
            norm_weights=None if rotation is None else rotation.norm_weights,
            cos_sin=None if rotation is None else rotation.cos_sin,
            window=geometry.window,
            eps=0.0 if rotation is None else rotation.eps,
            by_token=rotation is not None and rotation.by_token,
        )
