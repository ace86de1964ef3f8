"""FlashAttention 2 as built into torch: ragged, capturable, nothing to plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.attention.base import BackendUnavailableError, Geometry, RaggedLayout, SplitAttention
from rose_backend.kernels.ops import Ops
from rose_backend.kernels.padding import clear_beyond

_LARGEST_HEAD_DIM = 256


@dataclass(frozen=True)
class TorchVarlenBackend:
    """`aten::_flash_attention_forward` over `cu_seqlens` on the device.

    Raises:
        BackendUnavailableError: not on a GPU, or a dtype or head size the kernel does not have.
    """

    geometry: Geometry
    ops: Ops
    name: str = "torch_varlen"
    capturable: bool = True
    longest: int | None = None
    shares_workspace: bool = False

    def __post_init__(self) -> None:
        geometry = self.geometry
        if geometry.device.type != "cuda":
            raise BackendUnavailableError("torch_varlen: needs a CUDA device")
        if geometry.dtype not in (torch.bfloat16, torch.float16):
            raise BackendUnavailableError(f"torch_varlen: no kernel for {geometry.dtype}")
        if geometry.head_dim > _LARGEST_HEAD_DIM or geometry.head_dim % 8:
            raise BackendUnavailableError(f"torch_varlen: no kernel for head_dim {geometry.head_dim}")

    def open(self, layout: RaggedLayout) -> TorchVarlenAttention:
        """See `AttentionBackend`."""
        return TorchVarlenAttention(self.geometry, self.ops, layout)


class TorchVarlenAttention(SplitAttention):
    """See `Attention`."""

    def __init__(self, geometry: Geometry, ops: Ops, layout: RaggedLayout) -> None:
        super().__init__(geometry, ops)
        self._causal = geometry.causal
        self._scale = geometry.scale
        self._left, self._right = geometry.window or (-1, -1)
        self._cu_seqlens = layout.cu_seqlens
        self._max_seqlen = layout.max_seqlen
        self._may_leave_rows = layout.num_tokens > layout.max_seqlen  # those of padding

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `SplitAttention`."""
        out: torch.Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, self._cu_seqlens, self._cu_seqlens, self._max_seqlen, self._max_seqlen,
            0.0, self._causal, False, scale=self._scale, window_size_left=self._left, window_size_right=self._right,
        )[0]  # fmt: skip
        if self._may_leave_rows:
            clear_beyond(out.flatten(1), self._cu_seqlens, self._max_seqlen)
        return out
