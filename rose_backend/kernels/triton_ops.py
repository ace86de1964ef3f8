"""The fused steps on a GPU: each a Triton kernel, launched the same way at every shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rose_backend.config import PoolingMode
from rose_backend.kernels import activations, fused_gemm, gemm, norms, ragged, rope
from rose_backend.kernels.tilings import Tilings


class TritonOps:
    """See `Ops`.

    Args:
        device: decides, with the dtype, which products are our own.
        dtype: what the model computes in.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._tilings = Tilings.of(device, dtype)

    def embed_rms_norm(
        self, input_ids: torch.Tensor, words: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops`."""
        return norms.embed_rms_norm(input_ids, words, weight, eps)

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

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        tiling = self._tilings.linear(len(x), *weight.shape)
        return F.linear(x, weight) if tiling is None else gemm.linear(x, weight, tiling)

    def linear_add_rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm_weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        tiling = self._tilings.split_linear(len(x), *weight.shape)
        if tiling is None:
            residual.addmm_(x, weight.t())  # the product's own epilogue adds: a third less to read and write
            return norms.rms_norm(residual, norm_weight, eps)
        return gemm.sum_rms_norm(gemm.linear(x, weight, tiling), residual, norm_weight, eps)

    def swiglu(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        fused = self._tilings.fused_swiglu(len(x), *gate_up.shape)
        if fused is not None:
            return fused_gemm.swiglu(x, gate_up, fused)
        tiling = self._tilings.swiglu(len(x), *gate_up.shape)
        if tiling is None:
            return activations.silu_mul(F.linear(x, gate_up))
        return gemm.swiglu(x, gate_up, tiling)

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

    def pool_modes(
        self,
        hidden: torch.Tensor,
        cu_seqlens: torch.Tensor,
        num_sequences: int,
        modes: tuple[PoolingMode, ...],
        pool_from: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `Ops`."""
        return ragged.pool_modes(hidden, cu_seqlens, num_sequences, modes, pool_from)

    def scale(self, x: torch.Tensor, normalize: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return ragged.scale(x, normalize)
