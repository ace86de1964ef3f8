"""The fused steps models are written with. Signatures only; `torch_ops` and `triton_ops` implement them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from rose_backend.config import PoolingMode


class Nonlinearity(str, Enum):
    """What a gate goes through; GELU is exact (erf) unless it says otherwise."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"


@dataclass(frozen=True)
class Rotation:
    """The norm and rotation of queries and keys that come before attention; see `Ops.qk_norm_rope`.

    Attributes:
        norm_weights: `[2, head_dim]`, for queries and for keys; None: they are not normed.
        cos_sin: `[max_positions, head_dim]` float32, or `[tokens, head_dim]` where `by_token`.
        positions: `[tokens]` int32, each token's row in `cos_sin`: its place in its sequence, or itself.
        eps: of the norm.
        by_token: whether each token has a row of its own, because angles depend on more than places.
    """

    norm_weights: torch.Tensor | None
    cos_sin: torch.Tensor
    positions: torch.Tensor
    eps: float
    by_token: bool = False


class Ops(Protocol):
    """Each step computes in float32 inside and rounds once, to its input's dtype, unless said otherwise.

    Weights of RMS norms may be float32 whatever the input is.
    """

    def embed_rms_norm(
        self, input_ids: torch.Tensor, words: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x = words[input_ids]` and `x / rms(x) * weight`, both `[tokens, hidden]`."""

    def add_layer_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """`LayerNorm(x + residual)`; all `[tokens, hidden]`. May overwrite `x`."""

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
        """`LayerNorm(words[input_ids] + places[positions])`, `[tokens, hidden]`; the second term where it is given."""

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
        """RMSNorm each query and key head where weights are given, then rotate it (half-split RoPE), in place.

        Args:
            qkv: `[tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, a fused projection.
            norm_weights: `[2, head_dim]`, for queries and for keys.
            cos_sin: `[rows, head_dim]` float32: cosines, then sines, of each half-dimension.
            positions: `[tokens]` int32, rows of `cos_sin`.
            num_heads: query heads.
            num_kv_heads: key heads, and as many value heads, which stay as they are.
            eps: of the norm.
        """

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x @ weight.T + bias`, `[tokens, depth]` by `[width, depth]`."""

    def linear_add_rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm_weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `x @ weight.T` into `residual` `[tokens, hidden]` in place and return the norm of the sum."""

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
        """As `linear_add_rms_norm`, with LayerNorm; `bias` belongs to the product."""

    def norm_add_rms_norm(
        self, x: torch.Tensor, inner: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `x / rms(x) * inner` into `residual` in place and return `sum / rms(sum) * weight`.

        Args:
            x: `[tokens, hidden]`, which may be overwritten.
            inner: `[hidden]`.
            residual: `[tokens, hidden]`.
            weight: `[hidden]`.
            eps: of both norms.
        """

    def glu(
        self, x: torch.Tensor, gate_up: torch.Tensor, nonlinearity: Nonlinearity, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`nonlinearity(gate) * up` with `gate, up` the halves of `x @ gate_up.T + bias`.

        Args:
            x: `[tokens, depth]`.
            gate_up: `[2 * n, depth]`, gate rows first.
            nonlinearity: what the gate goes through.
            bias: `[2 * n]`.

        Returns:
            `[tokens, n]`.
        """

    def linear_gelu(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As `linear`, and of that the exact (erf) GELU."""

    def positions(self, cu_seqlens: torch.Tensor, num_tokens: int, limit: int) -> torch.Tensor:
        """Each token's place in its sequence, `[num_tokens]` int32.

        Args:
            cu_seqlens: `[num_sequences + 1]` int32.
            num_tokens: the last offset.
            limit: places stay below it. Only a segment of padding can be longer than the model allows, and its
                look-ups must not leave the tables.
        """

    def counted_positions(
        self, input_ids: torch.Tensor, cu_seqlens: torch.Tensor, pad: int, limit: int
    ) -> torch.Tensor:
        """Positions as RoBERTa counts them, `[num_tokens]` int32: pads stay at `pad` and do not count.

        The k-th other token of a sequence, from 1, has position `pad + k`
        (`create_position_ids_from_input_ids` in transformers' `modeling_xlm_roberta.py`).

        Args:
            input_ids: `[num_tokens]` int32.
            cu_seqlens: `[num_sequences + 1]` int32.
            pad: the token that does not count.
            limit: positions stay below it; see `positions`.
        """

    def token_types(self, cu_seqlens: torch.Tensor, type_from: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Each token's type, `[num_tokens]` int32: 1 in the second text of a pair, else 0.

        Args:
            cu_seqlens: `[num_sequences + 1]` int32; on a GPU one more, whose sequence of padding is of type 0.
            type_from: `[num_sequences]` int32, the place in a sequence where its second text begins; 0: it has none.
            num_tokens: the last offset.
        """

    def pool(
        self, hidden: torch.Tensor, cu_seqlens: torch.Tensor, normalize: torch.Tensor, mode: PoolingMode
    ) -> torch.Tensor:
        """Pool in one way and, where asked, scale to unit length.

        Args:
            hidden: `[tokens, dim]`.
            cu_seqlens: at least `[num_sequences + 1]` int32; what lies beyond is padding.
            normalize: `[num_sequences]` int32; see `scale`.
            mode: MEAN, CLS or LAST.

        Returns:
            `[num_sequences, dim]` float32.
        """

    def pool_modes(
        self,
        hidden: torch.Tensor,
        cu_seqlens: torch.Tensor,
        num_sequences: int,
        modes: tuple[PoolingMode, ...],
        pool_from: torch.Tensor | None,
    ) -> torch.Tensor:
        """Pool in several ways, or without the first tokens of each sequence.

        Where no token is left, CLS is the sequence's first one and every other mode gives zeros.

        Args:
            hidden: `[tokens, dim]`.
            cu_seqlens: at least `[num_sequences + 1]` int32; what lies beyond is padding.
            num_sequences: rows wanted.
            modes: different ones; their vectors stand one after another.
            pool_from: `[num_sequences]` int32, tokens left out at the start of each sequence; None: none.

        Returns:
            `[num_sequences, len(modes) * dim]` float32.
        """

    def pool_spans(self, hidden: torch.Tensor, starts: torch.Tensor, stops: torch.Tensor) -> torch.Tensor:
        """Means of runs of tokens, `[num_spans, dim]` float32; zeros where a run has none.

        Args:
            hidden: `[tokens, dim]`, contiguous.
            starts: `[num_spans]` int32, each run's first token.
            stops: `[num_spans]` int32, the token after its last.
        """

    def scale(self, x: torch.Tensor, normalize: torch.Tensor) -> torch.Tensor:
        """Scale rows of `x` `[num_sequences, dim]` float32 to unit length; may overwrite it.

        Args:
            x: contiguous.
            normalize: `[num_sequences]` int32; 0: leave the row; 1: divide it by its length; -d: divide it by the
                length of its first d elements. No length counts as less than 1e-12.
        """

    def tanh_codes(self, x: torch.Tensor) -> torch.Tensor:
        """`round(127 * tanh(x))`, half to even, of contiguous `x` `[rows, dim]` float32; `[rows, dim]` int8."""

    def range_codes(
        self,
        x: torch.Tensor,
        normalize: torch.Tensor,
        scalings: torch.Tensor,
        lows: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """`clip(floor((x - low) / step), 0, 255) - 128`, with ranges chosen by how a row is scaled.

        Args:
            x: `[rows, dim]` float32, contiguous.
            normalize: `[rows]` int32; see `scale`.
            scalings: `[num_ranges]` int32; a row of `x` takes the ranges whose scaling is its own, or the first.
            lows: `[num_ranges, dim]` float32.
            steps: `[num_ranges, dim]` float32, positive.

        Returns:
            `[rows, dim]` int8.
        """

    def sign_bits(self, x: torch.Tensor, *, or_zero: bool) -> torch.Tensor:
        """Whether elements are above zero, or zero where `or_zero`: 8 to a byte, the first in the highest bit.

        Args:
            x: `[rows, dim]` float32, contiguous.
            or_zero: whether zero (of either sign) counts as above.

        Returns:
            `[rows, ceil(dim / 8)]` uint8; bits past the last element are 0.
        """
