"""The fused steps on a GPU: each a Triton kernel, launched the same way at every shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rose_backend.config import PoolingMode
from rose_backend.kernels import activations, codes, fused_gemm, gemm, norms, ragged, rope
from rose_backend.kernels.ops import Nonlinearity
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
        positions: torch.Tensor | None,
        words: torch.Tensor,
        places: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """See `Ops`."""
        return norms.embed_layer_norm(input_ids, positions, words, places, weight, bias, eps)

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        norm_weights: torch.Tensor | None,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
    ) -> None:
        """See `Ops`."""
        rope.qk_norm_rope(qkv, norm_weights, cos_sin, positions, num_heads, num_kv_heads, eps)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops`."""
        tiling = self._tilings.linear(len(x), *weight.shape)
        return F.linear(x, weight, bias) if tiling is None else gemm.linear(x, weight, tiling, bias)

    def linear_add_rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm_weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        tiling = self._tilings.split_linear(len(x), *weight.shape)
        if tiling is None:
            residual.addmm_(x, weight.t())  # the product's own epilogue adds: a third less to read and write
            return norms.rms_norm(residual, norm_weight, eps)
        return gemm.sum_rms_norm(gemm.linear(x, weight, tiling), residual, norm_weight, eps)

    def linear_add_layer_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        residual: torch.Tensor,
        norm_weight: torch.Tensor,
        norm_bias: torch.Tensor,
        eps: float,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Ops`."""
        residual.addmm_(x, weight.t())
        if bias is not None:
            residual.add_(bias)
        return norms.layer_norm(residual, norm_weight, norm_bias, eps)

    def norm_add_rms_norm(
        self, x: torch.Tensor, inner: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        return norms.norm_add_rms_norm(x, inner, residual, weight, eps)

    def glu(
        self, x: torch.Tensor, gate_up: torch.Tensor, nonlinearity: Nonlinearity, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Ops`."""
        if bias is not None:
            return activations.gated(F.linear(x, gate_up, bias), nonlinearity)
        fused = self._tilings.fused_glu(len(x), *gate_up.shape)
        if fused is not None:
            return fused_gemm.glu(x, gate_up, fused, nonlinearity)
        tiling = self._tilings.glu(len(x), *gate_up.shape)
        if tiling is None:
            return activations.gated(F.linear(x, gate_up), nonlinearity)
        return gemm.glu(x, gate_up, tiling, nonlinearity)

    def linear_gelu(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops`."""
        return activations.gelu(F.linear(x, weight, bias))

    def positions(self, cu_seqlens: torch.Tensor, num_tokens: int, limit: int) -> torch.Tensor:
        """See `Ops`."""
        return ragged.positions(cu_seqlens, num_tokens, limit)

    def counted_positions(
        self, input_ids: torch.Tensor, cu_seqlens: torch.Tensor, pad: int, limit: int
    ) -> torch.Tensor:
        """See `Ops`."""
        return ragged.counted_positions(input_ids, cu_seqlens, pad, limit)

    def token_types(self, cu_seqlens: torch.Tensor, type_from: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """See `Ops`."""
        return ragged.token_types(cu_seqlens, type_from, num_tokens)

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

    def pool_spans(self, hidden: torch.Tensor, starts: torch.Tensor, stops: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return ragged.pool_spans(hidden, starts, stops)

    def scale(self, x: torch.Tensor, normalize: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return ragged.scale(x, normalize)

    def tanh_codes(self, x: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return codes.tanh_codes(x)

    def range_codes(
        self,
        x: torch.Tensor,
        normalize: torch.Tensor,
        scalings: torch.Tensor,
        lows: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """See `Ops`."""
        return codes.range_codes(x, normalize, scalings, lows, steps)

    def sign_bits(self, x: torch.Tensor, *, or_zero: bool) -> torch.Tensor:
        """See `Ops`."""
        return codes.sign_bits(x, or_zero=or_zero)
