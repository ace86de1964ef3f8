"""RoBERTa, XLM-RoBERTa, CamemBERT (bge-m3, multilingual-e5-base and -large): BERT's layers, other positions.

Positions start behind the padding token's, and a padding token written out in a text keeps that position and does not
advance the count (`modeling_xlm_roberta.py` in transformers). All tokens are of type 0, in pairs too.
"""

from __future__ import annotations

import torch

from rose_backend.attention.base import RaggedLayout
from rose_backend.models.base import ModelSource
from rose_backend.models.bert import Bert
from rose_backend.models.lengths import pad_token


class Roberta(Bert):
    """A RoBERTa encoder; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source)
        self.num_token_types = 1
        self._pad = pad_token(source.values)

    def _positions(self, input_ids: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        return self._ops.counted_positions(input_ids, layout.cu_seqlens, self._pad, self._table_positions)
