"""From token vectors to one vector a sequence, in float32 whatever the model computes in."""

from __future__ import annotations

import torch

from rose_backend.config import PoolingMode

_SMALLEST_NORM = 1e-12  # torch.nn.functional.normalize's default, which sentence-transformers uses


def pool(hidden: torch.Tensor, cu_seqlens: torch.Tensor, mode: PoolingMode) -> torch.Tensor:
    """Pool ragged token vectors.

    Args:
        hidden: `[total_tokens, dim]`.
        cu_seqlens: `[num_sequences + 1]` int, same device.
        mode: which token vectors count.

    Returns:
        `[num_sequences, dim]` float32.
    """
    if mode is PoolingMode.CLS:
        return hidden[cu_seqlens[:-1]].float()
    if mode is PoolingMode.LAST:
        return hidden[cu_seqlens[1:] - 1].float()
    return torch.segment_reduce(hidden.float(), "mean", offsets=cu_seqlens.long(), axis=0)


def normalize_rows(vectors: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Scale the wanted rows to unit length and leave the others.

    Args:
        vectors: `[num_sequences, dim]` float32.
        wanted: `[num_sequences]` bool, same device.
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1).clamp_min(_SMALLEST_NORM)
    return vectors / torch.where(wanted, norms, 1.0)[:, None]
