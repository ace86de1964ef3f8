"""From token ids to vectors, the same on every device: layers, pooling, scaling."""

from __future__ import annotations

import torch

from rose_backend.attention.base import Attentions
from rose_backend.config import PoolingMode
from rose_backend.kernels.ops import Ops
from rose_backend.models.base import RaggedModel

# Below it, picking the rows costs as much as the last layer saves: half a dozen launches against three products that
# are no slower for a few hundred rows than for a few.
_PICK_ROWS_FROM = 1024


def forward(
    model: RaggedModel,
    ops: Ops,
    input_ids: torch.Tensor,
    cu_seqlens: torch.Tensor,
    normalize: torch.Tensor,
    attends: Attentions,
    pooling: PoolingMode,
) -> torch.Tensor:
    """Run a batch.

    Where pooling takes a single token of each sequence, the last layer computes no others after its attention.

    Args:
        model: the layers.
        ops: the steps around them.
        input_ids: `[total_tokens]` int32.
        cu_seqlens: at least `[num_sequences + 1]` int32; what lies beyond is padding.
        normalize: `[num_sequences]` bool or int32.
        attends: planned for these offsets.
        pooling: which token vectors count.

    Returns:
        `[num_sequences, dim]` float32.
    """
    num_tokens, num_sequences = len(input_ids), len(normalize)
    if pooling is PoolingMode.MEAN or num_tokens < _PICK_ROWS_FROM:
        return ops.pool(model(input_ids, attends), cu_seqlens, normalize, pooling)
    offsets = cu_seqlens[: num_sequences + 1]
    picked = offsets[:-1] if pooling is PoolingMode.CLS else offsets[1:] - 1
    # An unused row of a padded batch starts where the tokens end.
    hidden = model(input_ids, attends, picked.clamp(max=num_tokens - 1))
    one_each = torch.arange(num_sequences + 1, dtype=torch.int32, device=hidden.device)
    return ops.pool(hidden, one_each, normalize, PoolingMode.CLS)
