"""Tiny random Qwen3 checkpoints, causal and bidirectional: the engine on the CPU against transformers in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

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
    randomised,
    rewrite,
    sequences,
)

VOCAB = 60
THETA = 5000.0  # not the default, so that ignoring it shows
WINDOWED = {"use_sliding_window": True, "sliding_window": 5}


def tiny(**changes: object) -> Qwen3Config:
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,  # not hidden_size / num_attention_heads
        "max_position_embeddings": LIMIT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "attn_implementation": "sdpa",
    }
    return Qwen3Config(**{**values, **changes})


@pytest.fixture(scope="module")
def causal() -> Qwen3Model:
    return randomised(Qwen3Model(tiny()))


@pytest.fixture(scope="module")
def bidirectional(causal: Qwen3Model) -> Qwen3Model:
    """The same weights, every token seeing every other."""
    model = Qwen3Model(tiny(is_causal=False))
    model.load_state_dict(causal.state_dict())
    return model.eval()


@pytest.fixture(scope="module")
def saved(causal: Qwen3Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    causal.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy whose config may be changed."""
    return Path(shutil.copytree(saved, tmp_path / "qwen3"))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("pooling", [PoolingMode.LAST, PoolingMode.MEAN])
def test_causal_equals_transformers(
    causal: Qwen3Model, saved: Path, lengths: tuple[int, ...], pooling: PoolingMode
) -> None:
    ids = sequences(lengths, VOCAB)
    assert_close(embed(engine_on(saved, pooling), ids), expected(causal, ids, pooling))


def test_the_bidirectional_oracle_really_sees_every_token(causal: Qwen3Model, bidirectional: Qwen3Model) -> None:
    ids = torch.tensor(sequences((9,), VOCAB))
    everything = torch.ones(1, 1, 9, 9, dtype=torch.bool)
    with torch.inference_mode():
        stock = bidirectional(ids).last_hidden_state
        unmasked = causal(ids, attention_mask=everything).last_hidden_state
        masked = causal(ids).last_hidden_state
    assert_close(stock, unmasked)
    assert largest_difference(stock, masked) > 0.1


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_bidirectional_equals_transformers(
    bidirectional: Qwen3Model, folder: Path, lengths: tuple[int, ...], pooling: PoolingMode
) -> None:
    rewrite(folder, is_causal=False)
    ids = sequences(lengths, VOCAB)
    assert_close(embed(engine_on(folder, pooling), ids), expected(bidirectional, ids, pooling))


@pytest.mark.parametrize(
    "switch",
    [
        {"use_bidirectional_attention": True},
        {"model_type": "bidirectional_pplx_qwen3"},
        {"architectures": ["PPLXQwen3Model"]},
        {"auto_map": {"AutoModel": "modeling.PPLXQwen3ContextualModel"}},
    ],
)
def test_other_switches_to_bidirectional(bidirectional: Qwen3Model, folder: Path, switch: dict[str, object]) -> None:
    rewrite(folder, **switch)
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(folder), ids), expected(bidirectional, ids, PoolingMode.MEAN))


def test_the_stock_class_ignores_one_of_the_switches(causal: Qwen3Model) -> None:
    """So it is no oracle of checkpoints that use it."""
    deaf = Qwen3Model(tiny(use_bidirectional_attention=True))
    deaf.load_state_dict(causal.state_dict())
    ids = torch.tensor(sequences((9,), VOCAB))
    with torch.inference_mode():
        assert_close(deaf.eval()(ids).last_hidden_state, causal(ids).last_hidden_state)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("named", [True, False], ids=["layer_types", "max_window_layers"])
def test_sliding_windows(tmp_path: Path, named: bool, is_causal: bool) -> None:
    """Window 5, in the second layer alone."""
    model = randomised(Qwen3Model(tiny(**WINDOWED, max_window_layers=1, is_causal=is_causal)))
    assert model.config.layer_types == ["full_attention", "sliding_attention"]
    model.save_pretrained(tmp_path)
    if not named:
        rewrite(tmp_path, "layer_types")
    assert_equals(tmp_path, model, sequences((1, 2, 4, 5, 6, 7, LIMIT - 1, LIMIT, 3), VOCAB))


def test_rope_theta_in_either_place(causal: Qwen3Model, folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    right = expected(causal, ids, PoolingMode.LAST)
    assert json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"] == THETA
    assert_close(embed(engine_on(folder, PoolingMode.LAST), ids), right)
    rewrite(folder, "rope_parameters", rope_theta=THETA)
    assert_close(embed(engine_on(folder, PoolingMode.LAST), ids), right)
    rewrite(folder, rope_theta=THETA, rope_scaling=None)
    assert_close(embed(engine_on(folder, PoolingMode.LAST), ids), right)
    rewrite(folder, rope_theta=1e6)
    assert largest_difference(embed(engine_on(folder, PoolingMode.LAST), ids), right) > 1e-3


def test_a_language_models_checkpoint(tmp_path: Path) -> None:
    model = randomised(Qwen3ForCausalLM(tiny()))
    model.save_pretrained(tmp_path)
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(tmp_path, PoolingMode.LAST), ids), expected(model.model, ids, PoolingMode.LAST))


def test_normalize_gives_unit_vectors(causal: Qwen3Model, saved: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    raw = expected(causal, ids, PoolingMode.LAST)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    assert_close(embed(engine_on(saved, PoolingMode.LAST), ids, normalize=True), unit)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({**WINDOWED, "layer_types": None, "max_window_layers": None}, "max_window_layers"),
        ({**WINDOWED, "layer_types": ["chunked_attention"] * 2}, "'chunked_attention'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": THETA}}, "rope_type 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
        ({"rope_parameters": None}, "rope_theta"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder: Path, changes: dict[str, object], named: str) -> None:
    rewrite(folder, "rope_theta", **changes)
    with pytest.raises(CheckpointError, match=named):
        engine_on(folder)


@pytest.mark.parametrize("key", ["num_key_value_heads", "intermediate_size", "max_position_embeddings"])
def test_a_missing_key_is_named(folder: Path, key: str) -> None:
    rewrite(folder, key)
    with pytest.raises(CheckpointError, match=key):
        engine_on(folder)
