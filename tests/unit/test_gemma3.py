"""Tiny random Gemma 3 text checkpoints: the engine on the CPU against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Gemma3TextModel

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError
from rose_backend.models.registry import load_model
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

VOCAB = 60
WINDOW = 8  # four tokens on either side, or seven behind
EDGES = (3, 4, 5, 6, 7, 8, 9, 10, 1, 2, LIMIT - 1, LIMIT)
THETAS = {
    "full_attention": {"rope_type": "default", "rope_theta": 900.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
}
BOTH_WAYS = pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])


def tiny(**changes: object) -> Gemma3TextConfig:
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 48,  # its square root is not a number of few bits
        "intermediate_size": 56,
        "num_hidden_layers": 7,  # the sixth sees everything
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": LIMIT,
        "query_pre_attn_scalar": 24,  # not head_dim
        "sliding_window": WINDOW,
        "rope_parameters": {kind: dict(rope) for kind, rope in THETAS.items()},
        "use_bidirectional_attention": True,
    }
    return Gemma3TextConfig(**{**values, **changes})


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    """One is added to the norms' weights, which lie around zero."""
    return randomised(model, centre=0.0, spread=0.2)


@pytest.fixture(scope="module")
def model() -> Gemma3TextModel:
    return drawn(Gemma3TextModel(tiny()))


@pytest.fixture
def folder(model: Gemma3TextModel, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path)
    return tmp_path


@BOTH_WAYS
@pytest.mark.parametrize("lengths", [*LENGTHS.values(), EDGES], ids=[*LENGTHS, "edges"])
def test_equals_transformers(tmp_path: Path, lengths: tuple[int, ...], bidirectional: bool) -> None:
    model = drawn(Gemma3TextModel(tiny(use_bidirectional_attention=bidirectional)))
    assert model.config.layer_types == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(lengths, VOCAB))


@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_pooled(model: Gemma3TextModel, folder: Path, pooling: PoolingMode) -> None:
    ids = sequences(EDGES, VOCAB)
    assert_close(embed(engine_on(folder, pooling), ids), expected(model, ids, pooling))


def test_the_oracle_really_sees_both_ways(model: Gemma3TextModel, folder: Path) -> None:
    ids = sequences((LIMIT,), VOCAB)
    [both] = hidden_states(folder, ids)
    rewrite(folder, use_bidirectional_attention=False)
    assert largest_difference(hidden_states(folder, ids)[0][0], both[0]) > 1e-3


@BOTH_WAYS
def test_how_far_a_window_of_eight_reaches(tmp_path: Path, bidirectional: bool) -> None:
    """With one layer, a token moves exactly those that see it: four on either side, or itself and seven behind it."""
    layer = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    model = drawn(Gemma3TextModel(tiny(use_bidirectional_attention=bidirectional, **layer)))
    model.save_pretrained(tmp_path)
    [before] = hidden_states(tmp_path, [[5] * LIMIT])
    [after] = hidden_states(tmp_path, [[5] * 10 + [6] + [5] * (LIMIT - 11)])
    moved = (before - after).abs().amax(1) > 1e-6
    assert moved.nonzero().flatten().tolist() == list(range(6, 15) if bidirectional else range(10, 18))


def test_a_window_that_was_halved_already_is_refused(folder: Path) -> None:
    rewrite(folder, sliding_window=WINDOW // 2 + 1)
    with pytest.raises(CheckpointError, match=f"sliding_window {WINDOW // 2 + 1} is odd.* write {WINDOW}"):
        engine_on(folder)


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_older_files(tmp_path: Path, key: str) -> None:
    model = drawn(Gemma3TextModel(tiny(sliding_window_pattern=3)))
    assert model.config.layer_types.count("full_attention") == 2
    model.save_pretrained(tmp_path)
    old = {"rope_theta": 900.0, "rope_local_base_freq": 40.0, "rope_scaling": None, key: 3}
    rewrite(tmp_path, "layer_types", "rope_parameters", "_sliding_window_pattern", **old)
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


def test_what_older_files_leave_out(tmp_path: Path) -> None:
    """Every sixth layer is full, thetas are 1,000,000 and 10,000, epsilon is 1e-6."""
    model = drawn(Gemma3TextModel(tiny(rope_parameters=None)))
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, "layer_types", "rope_parameters", "_sliding_window_pattern", "rms_norm_eps", "hidden_activation")
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


def test_the_thetas_are_not_interchangeable(folder: Path) -> None:
    ids = sequences((LIMIT,), VOCAB)
    [right] = hidden_states(folder, ids)
    rewrite(folder, rope_parameters={"full_attention": THETAS["sliding_attention"]})
    assert largest_difference(hidden_states(folder, ids)[0], right) > 1e-3


def test_a_language_models_checkpoint(tmp_path: Path) -> None:
    model = drawn(Gemma3ForCausalLM(tiny()))
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model.model, sequences(EDGES, VOCAB))


def test_the_embedding_factor_is_rounded_to_the_weights_dtype(tmp_path: Path) -> None:
    """In bfloat16 27.75, not the square root of 768."""
    shape = {"hidden_size": 768, "num_hidden_layers": 1, "num_attention_heads": 3, "layer_types": ["full_attention"]}
    model = drawn(Gemma3TextModel(tiny(**shape))).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    scaled = load_model(tmp_path, torch.device("cpu"), torch.bfloat16)._words  # type: ignore[attr-defined]
    with torch.inference_mode():
        assert torch.equal(scaled, model.embed_tokens(torch.arange(VOCAB)))
        assert torch.equal(scaled, (model.embed_tokens.weight.float() * 27.75).bfloat16())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_bias": True}, "attention_bias True"),
        ({"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping 50\.0"),
        ({"hidden_activation": "snake"}, "hidden_activation 'snake'"),
        ({"layer_types": ["chunked_attention"] * 7}, "'chunked_attention'"),
        ({"rope_parameters": None, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_type 'linear'"),
        ({"query_pre_attn_scalar": None}, "query_pre_attn_scalar"),
        ({"sliding_window": None}, "sliding_window"),
        ({"head_dim": None}, "head_dim"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder: Path, changes: dict[str, object], named: str) -> None:
    rewrite(folder, **changes)
    with pytest.raises(CheckpointError, match=named):
        engine_on(folder)


@pytest.mark.parametrize("kind", ["gemma3_text", "bidirectional_pplx_qwen3"])
def test_float16_is_refused_unless_forced(folder: Path, kind: str) -> None:
    rewrite(folder, model_type=kind)
    config = EngineConfig(folder, LIMIT, HeadConfig(), dtype="float16", token_budget=64)
    with pytest.raises(CheckpointError, match=f"'{kind}' leaves the range of float16"):
        RoseEngine(config)


def test_float16_may_be_forced(folder: Path) -> None:
    config = EngineConfig(folder, LIMIT, HeadConfig(), dtype="float16", token_budget=64, allow_unsafe_dtype=True)
    assert RoseEngine(config).dim == 48
