"""The fused steps in plain torch: what the CPU runs, and what the GPU's kernels are checked against."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from rose_backend.config import PoolingMode
from rose_backend.kernels.ops import Nonlinearity
from rose_backend.kernels.packing import product

_SMALLEST_NORM = 1e-12  # torch.nn.functional.normalize's default, which sentence-transformers uses


_NONLINEARITIES: dict[Nonlinearity, Callable[[torch.Tensor], torch.Tensor]] = {
    Nonlinearity.SILU: F.silu,
    Nonlinearity.GELU: F.gelu,
    Nonlinearity.GELU_TANH: functools.partial(F.gelu, approximate="tanh"),
    Nonlinearity.RELU: F.relu,
}


class TorchOps:
    """See `Ops`."""

    def embed_rms_norm(
        self, input_ids: torch.Tensor, words: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops`."""
        x = F.embedding(input_ids, words)
        return x, _rms_norm(x, weight, eps)

    def add_layer_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        return F.layer_norm(x.add_(residual), weight.shape, weight, bias, eps)

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
        x = F.embedding(input_ids, words)
        if positions is not None and places is not None:
            x.add_(F.embedding(positions, places))
        return F.layer_norm(x, weight.shape, weight, bias, eps)

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
        head_dim = cos_sin.shape[1]
        cos, sin = cos_sin[positions].chunk(2, dim=-1)
        heads = qkv.view(len(qkv), -1, head_dim)
        for index, part in enumerate((heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads])):
            normed = part.float()
            if norm_weights is not None:
                normed = F.rms_norm(normed, (head_dim,), norm_weights[index].float(), eps)
            low, high = normed.chunk(2, dim=-1)
            turned = (low * cos[:, None] - high * sin[:, None], high * cos[:, None] + low * sin[:, None])
            part.copy_(torch.cat(turned, dim=-1))

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops`."""
        return product(x, weight, bias)

    def linear_add_rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm_weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        return _rms_norm(residual.add_(product(x, weight)), norm_weight, eps)

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
        return F.layer_norm(residual.add_(product(x, weight, bias)), norm_weight.shape, norm_weight, norm_bias, eps)

    def norm_add_rms_norm(
        self, x: torch.Tensor, inner: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Ops`."""
        total = residual.float() + F.rms_norm(x.float(), x.shape[-1:], inner.float(), eps)
        return _rms_norm(residual.copy_(total), weight, eps)

    def glu(
        self, x: torch.Tensor, gate_up: torch.Tensor, nonlinearity: Nonlinearity, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Ops`."""
        gate, up = product(x, gate_up, bias).chunk(2, dim=-1)
        return (_NONLINEARITIES[nonlinearity](gate.float()) * up.float()).to(x.dtype)

    def linear_gelu(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See `Ops`."""
        return product(x, weight, bias, gelu=True)

    def positions(self, cu_seqlens: torch.Tensor, num_tokens: int, limit: int) -> torch.Tensor:
        """See `Ops`."""
        starts = torch.repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff(), output_size=num_tokens)
        places = torch.arange(num_tokens, dtype=torch.int32, device=cu_seqlens.device) - starts
        return places.clamp_max(limit - 1)

    def counted_positions(
        self, input_ids: torch.Tensor, cu_seqlens: torch.Tensor, pad: int, limit: int
    ) -> torch.Tensor:
        """See `Ops`."""
        counts = (input_ids != pad).to(torch.int32)
        so_far = counts.cumsum(0, dtype=torch.int32)
        lengths = cu_seqlens.diff()
        before = torch.cat([so_far.new_zeros(1), so_far])[cu_seqlens[:-1]]
        own = so_far - torch.repeat_interleave(before, lengths, output_size=len(input_ids))
        return (own * counts + pad).clamp_max(limit - 1)

    def token_types(self, cu_seqlens: torch.Tensor, type_from: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """See `Ops`."""
        lengths = cu_seqlens.diff()
        places = self.positions(cu_seqlens, num_tokens, num_tokens)
        begins = torch.cat([type_from, type_from.new_zeros(len(lengths) - len(type_from))])
        begins = torch.repeat_interleave(begins, lengths, output_size=num_tokens)
        return ((begins > 0) & (places >= begins)).to(torch.int32)

    def pool(
        self, hidden: torch.Tensor, cu_seqlens: torch.Tensor, normalize: torch.Tensor, mode: PoolingMode
    ) -> torch.Tensor:
        """See `Ops`."""
        offsets = cu_seqlens[: len(normalize) + 1].long()
        if mode is PoolingMode.CLS:
            pooled = hidden[offsets[:-1]].float()
        elif mode is PoolingMode.LAST:
            pooled = hidden[offsets[1:] - 1].float()
        else:
            pooled = torch.segment_reduce(hidden[: int(offsets[-1])].float(), "mean", offsets=offsets, axis=0)
        return self.scale(pooled, normalize)

    def pool_modes(
        self,
        hidden: torch.Tensor,
        cu_seqlens: torch.Tensor,
        num_sequences: int,
        modes: tuple[PoolingMode, ...],
        pool_from: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `Ops`."""
        offsets = cu_seqlens[: num_sequences + 1].long()
        begins, stops = offsets[:-1], offsets[1:]
        starts = begins if pool_from is None else torch.minimum(begins + pool_from.clamp_min(0), stops)
        counts = stops - starts
        # Token t of the pooled ones of a sequence comes from hidden[starts + t]: one gather for all of them.
        shifts = torch.repeat_interleave(starts - (counts.cumsum(0) - counts), counts)
        places = shifts + torch.arange(len(shifts), device=hidden.device)
        kept = hidden[places].float()
        weights = (places - torch.repeat_interleave(begins, counts) + 1).float()[:, None]
        some = (counts > 0)[:, None]
        divisors = counts.clamp_min(1)[:, None].float()

        def reduced(values: torch.Tensor, how: str) -> torch.Tensor:
            return torch.where(some, torch.segment_reduce(values, how, lengths=counts, axis=0), 0.0)

        def pooled(mode: PoolingMode) -> torch.Tensor:
            if mode is PoolingMode.CLS:
                return hidden[torch.where(counts > 0, starts, begins)].float()
            if mode is PoolingMode.LAST:
                return torch.where(some, hidden[stops - 1].float(), 0.0)
            if mode is PoolingMode.MAX:
                return reduced(kept, "max")
            if mode is PoolingMode.WEIGHTED_MEAN:
                return reduced(kept * weights, "sum") / reduced(weights, "sum").clamp_min(1.0)
            return reduced(kept, "sum") / (divisors if mode is PoolingMode.MEAN else divisors.sqrt())

        return torch.cat([pooled(mode) for mode in modes], dim=1)

    def pool_spans(self, hidden: torch.Tensor, starts: torch.Tensor, stops: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        counts = (stops - starts).long()
        shifts = torch.repeat_interleave(starts - (counts.cumsum(0) - counts), counts)
        kept = hidden[shifts + torch.arange(len(shifts), device=hidden.device)].float()
        sums = torch.segment_reduce(kept, "sum", lengths=counts, axis=0)
        return sums / counts.clamp_min(1)[:, None]

    def scale(self, x: torch.Tensor, normalize: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        counted = x
        if bool((normalize < 0).any()):
            widths = torch.where(normalize < 0, -normalize, x.shape[1])
            counted = torch.where(torch.arange(x.shape[1], device=x.device) < widths[:, None], x, 0.0)
        norms = torch.linalg.vector_norm(counted, dim=-1).clamp_min(_SMALLEST_NORM)
        return x / torch.where(normalize != 0, norms, 1.0)[:, None]

    def tanh_codes(self, x: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return torch.round(127 * torch.tanh(x)).to(torch.int8)

    def range_codes(
        self,
        x: torch.Tensor,
        normalize: torch.Tensor,
        scalings: torch.Tensor,
        lows: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """See `Ops`."""
        which = (normalize[:, None] == scalings).int().argmax(dim=1)
        return (torch.floor((x - lows[which]) / steps[which]).clamp(0, 255) - 128).to(torch.int8)

    def sign_bits(self, x: torch.Tensor, *, or_zero: bool) -> torch.Tensor:
        """See `Ops`."""
        positive = (x >= 0) if or_zero else (x > 0)
        bits = F.pad(positive.to(torch.uint8), (0, -x.shape[1] % 8)).view(len(x), -1, 8)
        weights = 1 << torch.arange(7, -1, -1, dtype=torch.uint8, device=x.device)
        return (bits * weights).sum(dim=-1, dtype=torch.uint8)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)
