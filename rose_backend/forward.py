"""From token ids to vectors, the same on every device: layers, then the head."""

from __future__ import annotations

from dataclasses import replace

import torch

from rose_backend.attention.base import Attentions
from rose_backend.config import PoolingMode
from rose_backend.core import Field
from rose_backend.heads import Head
from rose_backend.kernels.ops import Ops
from rose_backend.models.base import RaggedModel
from rose_backend.staging import DeviceInputs

# Below it, picking the rows costs as much as the last layer saves: half a dozen launches against three products that
# are no slower for a few hundred rows than for a few.
_PICK_ROWS_FROM = 1024


def forward(model: RaggedModel, ops: Ops, inputs: DeviceInputs, attends: Attentions, head: Head | None) -> torch.Tensor:
    """Run a batch.

    Where pooling takes a single token of each sequence, the last layer computes no others after its attention.

    Args:
        model: the layers.
        ops: the steps around them.
        inputs: the batch.
        attends: planned for its offsets.
        head: from token vectors to vectors; None: the former are wanted.

    Returns:
        `[num_sequences, dim]` float32, or `[num_tokens, hidden_size]`.
    """
    num_tokens, num_sequences = len(inputs.input_ids), len(inputs.normalize)
    type_from = inputs.fields.get(Field.TYPE_FROM)
    types = None if type_from is None else ops.token_types(inputs.cu_seqlens, type_from, num_tokens)
    if head is None:
        return model(inputs.input_ids, attends, token_types=types)
    if head.single_token is None or num_tokens < _PICK_ROWS_FROM:
        return head(ops, model(inputs.input_ids, attends, token_types=types), inputs)
    offsets = inputs.cu_seqlens[: num_sequences + 1]
    picked = offsets[:-1] if head.single_token is PoolingMode.CLS else offsets[1:] - 1
    # An unused row of a padded batch starts where the tokens end.
    hidden = model(inputs.input_ids, attends, picked.clamp(max=num_tokens - 1), types)
    one_each = torch.arange(num_sequences + 1, dtype=torch.int32, device=hidden.device)
    return head(ops, hidden, replace(inputs, cu_seqlens=one_each))
