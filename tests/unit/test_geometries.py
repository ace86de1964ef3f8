"""BERT and Qwen3 of several geometries and epsilons on the CPU, ragged, against transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError
from tests.support.vectors import assert_close
from tests.unit.engines import LENGTHS, LIMIT, embed, engine_on, expected, randomised, sequences

_VOCAB = 101
_BERT = {
    "vocab_size": _VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LIMIT,
}
_QWEN3 = {**_BERT, "num_key_value_heads": 2, "head_dim": 16}


@pytest.mark.parametrize(
    "shape",
    [
        {"num_hidden_layers": 1, "num_attention_heads": 1},
        {"num_hidden_layers": 5},
        {"hidden_size": 48, "num_attention_heads": 12, "intermediate_size": 16},
        {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512},
        {"layer_norm_eps": 0.1},
        {"type_vocab_size": 1},
    ],
    ids=str,
)
def test_bert(tmp_path: Path, shape: dict[str, Any]) -> None:
    model = randomised(BertModel(BertConfig(**{**_BERT, **shape})))
    model.save_pretrained(tmp_path)
    ids = sequences(LENGTHS["unequal"], _VOCAB)
    assert_close(embed(engine_on(tmp_path), ids), expected(model, ids, PoolingMode.MEAN))


@pytest.mark.parametrize(
    "shape",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 32},
        {"num_hidden_layers": 5},
        {"rms_norm_eps": 0.1},
    ],
    ids=str,
)
def test_qwen3(tmp_path: Path, shape: dict[str, Any]) -> None:
    model = randomised(Qwen3Model(Qwen3Config(**{**_QWEN3, **shape})))
    model.save_pretrained(tmp_path)
    ids = sequences(LENGTHS["unequal"], _VOCAB)
    assert_close(embed(engine_on(tmp_path, PoolingMode.LAST), ids), expected(model, ids, PoolingMode.LAST))


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        ({"max_length": 0}, "max_length"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"token_budget": 0}, "token_budget"),
    ],
    ids=str,
)
def test_limits_that_could_never_work(tmp_path: Path, limits: dict[str, int], part: str) -> None:
    with pytest.raises(CheckpointError, match=part):
        EngineConfig(**{"checkpoint": tmp_path, "max_length": 8, "head": HeadConfig(), **limits})
