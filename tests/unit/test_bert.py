"""Tiny random BERT checkpoints: the engine on the CPU against transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError
from tests.support.vectors import assert_close, largest_difference
from tests.unit.engines import (
    LENGTHS,
    LIMIT,
    assert_equals,
    embed,
    engine_on,
    expected,
    hidden_states,
    randomised,
    rewrite,
    sequences,
)

VOCAB = 50


def tiny(**changes: object) -> BertConfig:
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": LIMIT,
        "layer_norm_eps": 1e-7,
    }
    return BertConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def model() -> BertModel:
    return randomised(BertModel(tiny()))


@pytest.fixture(scope="module")
def folder(model: BertModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    model.save_pretrained(path)
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize("pooling", list(PoolingMode))
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_equals_transformers(model: BertModel, folder: Path, lengths: tuple[int, ...], pooling: PoolingMode) -> None:
    ids = sequences(lengths, VOCAB)
    assert_close(embed(engine_on(folder, pooling), ids), expected(model, ids, pooling))


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
def test_activations(tmp_path: Path, activation: str) -> None:
    model = randomised(BertModel(tiny(hidden_act=activation)))
    model.save_pretrained(tmp_path)
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(tmp_path), ids), expected(model, ids, PoolingMode.MEAN))


def test_normalize_gives_unit_vectors(model: BertModel, folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    raw = expected(model, ids, PoolingMode.MEAN)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    assert_close(embed(engine_on(folder), ids, normalize=True), unit)


def test_the_second_text_of_a_pair_is_of_type_one(model: BertModel, folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    types = [[int(place > len(row) // 2) for place in range(len(row))] for row in ids]
    for actual, row, kinds in zip(hidden_states(folder, ids, types), ids, types, strict=True):
        with torch.inference_mode():
            right = model(torch.tensor([row]), token_type_ids=torch.tensor([kinds])).last_hidden_state[0]
        assert_close(actual, right)


def test_all_of_type_zero_is_what_no_types_are(model: BertModel, folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    zeros = [[0] * len(row) for row in ids]
    for one, other in zip(hidden_states(folder, ids), hidden_states(folder, ids, zeros), strict=True):
        assert torch.equal(one, other)


def test_a_pad_token_does_not_move_positions(tmp_path: Path) -> None:
    """As in multilingual-e5-small: a BERT with XLM-RoBERTa's tokenizer, and positions from 0 all the same."""
    model = randomised(BertModel(tiny(pad_token_id=1)))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, [[1, 5, 1, 7], *sequences((LIMIT, 1), VOCAB)])


def test_a_language_models_checkpoint(tmp_path: Path) -> None:
    model = randomised(BertForMaskedLM(tiny()))
    model.save_pretrained(tmp_path)
    assert "bert.embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(tmp_path), ids), expected(model.bert, ids, PoolingMode.MEAN))


def test_the_pooler_is_no_part_of_a_vector(model: BertModel, folder: Path) -> None:
    ids = sequences((7,), VOCAB)
    with torch.inference_mode():
        right = model(torch.tensor(ids))
    assert_close(embed(engine_on(folder, PoolingMode.CLS), ids), right.last_hidden_state[:, 0])
    assert largest_difference(right.pooler_output, right.last_hidden_state[:, 0]) > 0.1


def test_old_names_of_norm_parameters(model: BertModel, copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert "embeddings.LayerNorm.gamma" in old
    save_file(old, copied / "model.safetensors")
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(copied), ids), expected(model, ids, PoolingMode.MEAN))


def test_shards(model: BertModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(tmp_path), ids), expected(model, ids, PoolingMode.MEAN))


def test_half_precision_weights_are_computed_in_float32(folder: Path, tmp_path: Path) -> None:
    half = BertModel.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path)
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(tmp_path), ids), expected(half.float().eval(), ids, PoolingMode.MEAN))


def test_a_missing_shard_is_named(model: BertModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[-1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=gone.name):
        engine_on(tmp_path)


def test_an_unknown_model_type_is_refused_with_the_known_ones(copied: Path) -> None:
    rewrite(copied, model_type="perceiver")
    with pytest.raises(CheckpointError, match=r"'perceiver' is not served; known: .*'bert'.*'qwen3'"):
        engine_on(copied)


def test_a_missing_tensor_is_named(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.bias"]
    save_file(tensors, copied / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        engine_on(copied)


def test_a_file_of_another_architecture_is_refused(copied: Path) -> None:
    save_file({"wte.weight": torch.zeros(2, 2)}, copied / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embeddings\.word_embeddings\.weight.*wte\.weight"):
        engine_on(copied)


def test_a_file_of_another_format_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a readable file of tensors"):
        engine_on(copied)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_key_is_named(copied: Path, key: str) -> None:
    config = json.loads((copied / "config.json").read_text())
    del config[key]
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=key):
        engine_on(copied)


@pytest.mark.parametrize(
    ("key", "value"), [("position_embedding_type", "relative_key"), ("hidden_act", "swish_of_its_own")]
)
def test_what_is_not_served_is_refused_by_value(copied: Path, key: str, value: str) -> None:
    rewrite(copied, **{key: value})
    with pytest.raises(CheckpointError, match=f"{key} '{value}'"):
        engine_on(copied)


def test_more_length_than_positions_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=f"max_length {LIMIT + 1} .* {LIMIT} positions"):
        RoseEngine(EngineConfig(folder, LIMIT + 1, HeadConfig()))


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype 'int4' is not one of"):
        RoseEngine(EngineConfig(folder, LIMIT, HeadConfig(), dtype="int4"))
