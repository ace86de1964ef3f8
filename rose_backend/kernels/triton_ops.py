"""The fused steps on a GPU: each a Triton kernel, launched the same way at every shape."""

from __future__ import annotations

import torch

from rose_backend.config import PoolingMode
from rose_backend.kernels import activations, norms, ragged, rope


class TritonOps:
    """See `Ops`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops`."""
        return norms.rms_norm(x, None, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops`."""
        return norms.rms_norm(x, residual, weight, eps)

    def add_layer_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        return norms.add_layer_norm(x, residual, weight, bias, eps)

    def embed_layer_norm(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        words: torch.Tensor,
        places: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """See `Ops`."""
        return norms.embed_layer_norm(input_ids, positions, words, places, weight, bias, eps)

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        norm_weights: torch.Tensor,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
    ) -> None:
        """See `Ops`."""
        rope.qk_norm_rope(qkv, norm_weights, cos_sin, positions, num_heads, num_kv_heads, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return activations.silu_mul(gate_up)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return activations.gelu(x)

    def positions(self, cu_seqlens: torch.Tensor, num_tokens: int, limit: int) -> torch.Tensor:
        """See `Ops`."""
        return ragged.positions(cu_seqlens, num_tokens, limit)

    def pool(
        self, hidden: torch.Tensor, cu_seqlens: torch.Tensor, normalize: torch.Tensor, mode: PoolingMode
    ) -> torch.Tensor:
        """See `Ops`."""
        return ragged.pool(hidden, cu_seqlens, normalize, mode)
