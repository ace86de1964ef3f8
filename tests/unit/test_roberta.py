"""Tiny random RoBERTa, XLM-RoBERTa and CamemBERT checkpoints: the engine on the CPU against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CamembertConfig,
    CamembertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError
from tests.support.vectors import assert_close
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
PAD = 1
KINDS = {"roberta": (RobertaConfig, RobertaModel), "xlm-roberta": (XLMRobertaConfig, XLMRobertaModel)}


def shape(**changes: object) -> dict[str, object]:
    values: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": LIMIT + PAD + 1,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": PAD,
    }
    return {**values, **changes}


@pytest.fixture(scope="module")
def model() -> XLMRobertaModel:
    return randomised(XLMRobertaModel(XLMRobertaConfig(**shape())))


@pytest.fixture(scope="module")
def folder(model: XLMRobertaModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("xlm-roberta")
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_equals_transformers(tmp_path: Path, kind: str, lengths: tuple[int, ...]) -> None:
    config, cls = KINDS[kind]
    model = randomised(cls(config(**shape())))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(lengths, VOCAB))


@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_pooled(model: XLMRobertaModel, folder: Path, pooling: PoolingMode) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(folder, pooling), ids), expected(model, ids, pooling))


def test_a_written_out_pad_keeps_its_position_and_does_not_count(model: XLMRobertaModel, folder: Path) -> None:
    ids = [[0, 5, PAD, 7, 2], [PAD], [PAD, PAD, 9], [4], [0, PAD, 6, PAD, PAD, 8, 2, PAD], [PAD] * LIMIT]
    assert_equals(folder, model, ids)


@pytest.mark.parametrize("pad", [0, 3])
def test_positions_start_behind_whatever_the_pad_is(tmp_path: Path, pad: int) -> None:
    model = randomised(XLMRobertaModel(XLMRobertaConfig(**shape(pad_token_id=pad, max_position_embeddings=LIMIT + 4))))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, [[pad, 5, pad, 6], *sequences((LIMIT, 2), VOCAB)])


def test_positions_before_the_first_are_not_for_use(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=f"max_length {LIMIT + 1} is more than the {LIMIT} positions"):
        RoseEngine(EngineConfig(folder, LIMIT + 1, HeadConfig()))


def test_token_types_are_not_looked_at(folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    ones = [[1] * len(row) for row in ids]
    for one, other in zip(hidden_states(folder, ids), hidden_states(folder, ids, ones), strict=True):
        assert torch.equal(one, other)


def test_a_second_row_of_types_changes_nothing(tmp_path: Path) -> None:
    """Some RoBERTas have one; no tokenizer of theirs names it."""
    model = randomised(RobertaModel(RobertaConfig(**shape(type_vocab_size=2))))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


def test_a_language_models_checkpoint(tmp_path: Path) -> None:
    model = randomised(RobertaForMaskedLM(RobertaConfig(**shape())))
    model.save_pretrained(tmp_path)
    assert "roberta.embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    assert_equals(tmp_path, model.roberta, sequences(LENGTHS["unequal"], VOCAB))


@pytest.mark.parametrize("prefix", ["camembert.", "xlm-roberta.", "model.", ""])
def test_camembert_under_any_prefix(tmp_path: Path, prefix: str) -> None:
    model = randomised(CamembertForMaskedLM(CamembertConfig(**shape())))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("roberta.", prefix): tensor.clone() for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    assert_equals(tmp_path, model.roberta, sequences(LENGTHS["unequal"], VOCAB))


def test_no_positions_behind_the_pad_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    rewrite(tmp_path, max_position_embeddings=2)
    with pytest.raises(CheckpointError, match="max_position_embeddings 2 leaves no position behind pad_token_id 1"):
        engine_on(tmp_path)
