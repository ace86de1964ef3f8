"""Large batches of models that pool one token: the last layer runs that token alone, to the same vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    Qwen3Config,
    Qwen3Model,
)

from rose_backend.config import PoolingMode
from tests.support.vectors import assert_close
from tests.unit.engines import LIMIT, embed, engine_on, expected, randomised, sequences

_VOCAB = 101
_SHAPE = {
    "vocab_size": _VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LIMIT,
}


def _model(kind: str) -> torch.nn.Module:
    if kind == "bert":
        return randomised(BertModel(BertConfig(**_SHAPE)))
    if kind == "modernbert":
        return randomised(ModernBertModel(ModernBertConfig(**_SHAPE, local_attention=8, pad_token_id=0)), spread=0.2)
    if kind == "nomic_bert":
        return randomised(NomicBertModel(NomicBertConfig(**_SHAPE)), spread=0.2)
    if kind == "gemma3":
        shape = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8}
        return randomised(Gemma3TextModel(Gemma3TextConfig(**shape, use_bidirectional_attention=True)))
    return randomised(Qwen3Model(Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=16)))


@pytest.mark.parametrize("pooling", list(PoolingMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", ["bert", "qwen3", "modernbert", "nomic_bert", "gemma3"])
@pytest.mark.slow
def test_more_than_a_thousand_tokens(tmp_path: Path, kind: str, pooling: PoolingMode) -> None:
    model = _model(kind)
    model.save_pretrained(tmp_path)
    ids = sequences([LIMIT, 1, 17, LIMIT - 1] * 30, _VOCAB)
    assert sum(map(len, ids)) > 1024
    assert_close(embed(engine_on(tmp_path, pooling), ids), expected(model, ids, pooling))
