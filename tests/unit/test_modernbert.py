"""Tiny random ModernBERT checkpoints: the engine on the CPU against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

from rose_backend.config import PoolingMode
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
WINDOW = 8  # four tokens on either side
EDGES = (3, 4, 5, 6, 9, 1, 2, LIMIT - 1, LIMIT)
THETAS = {
    "full_attention": {"rope_type": "default", "rope_theta": 900.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
}


def tiny(**changes: object) -> ModernBertConfig:
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": LIMIT,
        "local_attention": WINDOW,
        "rope_parameters": {kind: dict(rope) for kind, rope in THETAS.items()},
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }
    return ModernBertConfig(**{**values, **changes})


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    return randomised(model, spread=0.2)


@pytest.fixture(scope="module")
def model() -> ModernBertModel:
    return drawn(ModernBertModel(tiny()))


@pytest.fixture
def folder(model: ModernBertModel, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("lengths", [*LENGTHS.values(), EDGES], ids=[*LENGTHS, "edges"])
def test_equals_transformers(model: ModernBertModel, folder: Path, lengths: tuple[int, ...]) -> None:
    full, sliding = "full_attention", "sliding_attention"
    assert model.config.layer_types == [full, sliding, sliding, full, sliding]
    assert_equals(folder, model, sequences(lengths, VOCAB))


@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_pooled(model: ModernBertModel, folder: Path, pooling: PoolingMode) -> None:
    ids = sequences(EDGES, VOCAB)
    assert_close(embed(engine_on(folder, pooling), ids), expected(model, ids, pooling))


def test_older_files(model: ModernBertModel, folder: Path) -> None:
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 900.0, "local_rope_theta": 40.0}
    rewrite(folder, "layer_types", "rope_parameters", **old)
    assert_equals(folder, model, sequences(EDGES, VOCAB))


def test_what_older_files_leave_out(tmp_path: Path) -> None:
    """Every third layer is global, thetas are 160,000 and 10,000, epsilon is 1e-5."""
    model = drawn(ModernBertModel(tiny(rope_parameters=None)))
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, "layer_types", "rope_parameters", "norm_eps", "norm_bias", "attention_bias", "mlp_bias")
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


@pytest.mark.parametrize("every", [1, 2])
def test_other_patterns(tmp_path: Path, every: int) -> None:
    model = drawn(ModernBertModel(tiny(global_attn_every_n_layers=every)))
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, "layer_types", global_attn_every_n_layers=every)
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


@pytest.mark.parametrize("part", ["norm_bias", "attention_bias", "mlp_bias"])
def test_biases(tmp_path: Path, part: str) -> None:
    model = drawn(ModernBertModel(tiny(**{part: True})))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


def test_another_activation(tmp_path: Path) -> None:
    model = drawn(ModernBertModel(tiny(hidden_activation="gelu_pytorch_tanh")))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


def test_a_window_of_eight_reaches_four_tokens(tmp_path: Path) -> None:
    """With one layer, a token moves exactly those that see it."""
    model = drawn(ModernBertModel(tiny(num_hidden_layers=1, layer_types=["sliding_attention"])))
    model.save_pretrained(tmp_path)
    [before] = hidden_states(tmp_path, [[5] * LIMIT])
    [after] = hidden_states(tmp_path, [[5] * 10 + [6] + [5] * (LIMIT - 11)])
    moved = (before - after).abs().amax(1) > 1e-6
    assert moved.nonzero().flatten().tolist() == list(range(6, 15))


def test_a_language_models_checkpoint(tmp_path: Path) -> None:
    model = drawn(ModernBertForMaskedLM(tiny()))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model.model, sequences(EDGES, VOCAB))


def test_the_thetas_are_not_interchangeable(model: ModernBertModel, folder: Path) -> None:
    ids = sequences((LIMIT,), VOCAB)
    [right] = hidden_states(folder, ids)
    rewrite(folder, rope_parameters={"full_attention": THETAS["sliding_attention"]})
    assert largest_difference(hidden_states(folder, ids)[0], right) > 1e-3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_activation": "snake"}, "hidden_activation 'snake'"),
        ({"layer_types": ["linear_attention"] * 5}, "'linear_attention'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 10.0}}}, "rope_type 'yarn'"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder: Path, changes: dict[str, object], named: str) -> None:
    rewrite(folder, **changes)
    with pytest.raises(CheckpointError, match=named):
        engine_on(folder)


def test_token_types_are_not_looked_at(folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    ones = [[1] * len(row) for row in ids]
    for one, other in zip(hidden_states(folder, ids), hidden_states(folder, ids, ones), strict=True):
        assert torch.equal(one, other)
