"""A small model of every family, as transformers makes it."""

from __future__ import annotations

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

from tests.unit.engines import LIMIT, randomised

VOCAB = 101
KINDS = ("bert", "qwen3", "modernbert", "nomic_bert", "gemma3")
NUM_LAYERS = 2
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LIMIT,
}


def tiny_model(kind: str) -> torch.nn.Module:
    """Of one of `KINDS`, with random weights and two layers."""
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
