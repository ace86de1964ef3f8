"""Tiny random Qwen2, Llama and Mistral checkpoints: the engine on the CPU against transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralModel,
    Qwen2Config,
    Qwen2Model,
)

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

VOCAB = 60
WINDOW = 5
EDGES = (WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 1, 2, LIMIT - 1, LIMIT)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,  # so that with these thetas each of the three bands has frequencies
}
CLASSES = {
    "qwen2": (Qwen2Config, Qwen2Model),
    "llama": (LlamaConfig, LlamaModel),
    "mistral": (MistralConfig, MistralModel),
}


def make(kind: str, **changes: object) -> Any:
    values: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LIMIT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }
    if kind == "mistral":
        values["sliding_window"] = None
    config, model = CLASSES[kind]
    return randomised(model(config(**{**values, **changes})))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("kind", CLASSES)
def test_causal_equals_transformers(tmp_path: Path, kind: str, lengths: tuple[int, ...]) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(lengths, VOCAB))


@pytest.mark.parametrize("pooling", list(PoolingMode))
@pytest.mark.parametrize("kind", CLASSES)
def test_pooled(tmp_path: Path, kind: str, pooling: PoolingMode) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path)
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(tmp_path, pooling), ids), expected(model, ids, pooling))


def assert_sees(folder: Path, model: Any, ids: list[list[int]], window: int | None = None) -> None:
    """As the stock model given a mask: every token sees every other one, or those no further off than a window."""
    for actual, row in zip(hidden_states(folder, ids), ids, strict=True):
        place = torch.arange(len(row))
        seen = (place[:, None] - place).abs() <= (len(row) if window is None else window)
        with torch.inference_mode():
            assert_close(actual, model(torch.tensor([row]), attention_mask=seen[None, None]).last_hidden_state[0])


@pytest.mark.parametrize("switch", [{"is_causal": False}, {"use_bidirectional_attention": True}], ids=str)
@pytest.mark.parametrize("kind", CLASSES)
def test_bidirectional(tmp_path: Path, kind: str, switch: dict[str, object]) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, **switch)
    assert_sees(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


@pytest.mark.parametrize(
    "switch", [{"model_type": "llama_bidirec"}, {"architectures": ["LlamaBidirectionalModel"]}], ids=str
)
def test_bidirectional_llama_by_its_name(tmp_path: Path, switch: dict[str, object]) -> None:
    model = make("llama", rope_parameters=dict(LLAMA3))
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, **switch)
    assert_sees(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


def test_qwen2s_biases_count(tmp_path: Path) -> None:
    model = make("qwen2")
    assert model.layers[0].self_attn.q_proj.bias.abs().min() > 0
    assert model.layers[0].self_attn.o_proj.bias is None
    model.save_pretrained(tmp_path)
    ids = sequences((LIMIT,), VOCAB)
    [right] = hidden_states(tmp_path, ids)
    with torch.no_grad():
        model.layers[0].self_attn.k_proj.bias.zero_()
        model.layers[1].self_attn.v_proj.bias.zero_()
    model.save_pretrained(tmp_path)
    assert largest_difference(hidden_states(tmp_path, ids)[0], right) > 1e-3


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
def test_qwen2_through_a_window(tmp_path: Path, is_causal: bool) -> None:
    window = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    model = make("qwen2", is_causal=is_causal, **window)
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


def test_qwen2s_window_is_not_used_unless_it_says_so(tmp_path: Path) -> None:
    model = make("qwen2")
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, use_sliding_window=False, sliding_window=WINDOW, max_window_layers=0)
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


def test_mistral_through_a_window(tmp_path: Path) -> None:
    """A causal window counts the token itself."""
    model = make("mistral", sliding_window=WINDOW)
    model.save_pretrained(tmp_path)
    ids = sequences(EDGES, VOCAB)
    assert_equals(tmp_path, model, ids)
    rewrite(tmp_path, sliding_window=WINDOW + 1)
    longest = [ids[EDGES.index(LIMIT)]]
    with torch.inference_mode():
        right = model(torch.tensor(longest)).last_hidden_state[0]
    assert largest_difference(hidden_states(tmp_path, longest)[0], right) > 1e-3


def test_bidirectional_mistral_through_a_window(tmp_path: Path) -> None:
    model = make("mistral", sliding_window=WINDOW)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, is_causal=False)
    assert_sees(tmp_path, model, sequences(EDGES, VOCAB), WINDOW)


def test_a_window_wider_than_the_model(tmp_path: Path) -> None:
    model = make("mistral", sliding_window=LIMIT)
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(EDGES, VOCAB))


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_llama3_scaling(tmp_path: Path, place: str) -> None:
    model = make("llama", rope_parameters=dict(LLAMA3))
    model.save_pretrained(tmp_path)
    if place == "rope_scaling":
        scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
        rewrite(tmp_path, "rope_parameters", rope_theta=LLAMA3["rope_theta"], rope_scaling=scaling)
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_equals(tmp_path, model, ids)
    right = hidden_states(tmp_path, ids)[3]
    rewrite(tmp_path, "rope_scaling", "rope_parameters", rope_theta=LLAMA3["rope_theta"])
    assert largest_difference(hidden_states(tmp_path, ids)[3], right) > 1e-3


def test_every_band_of_llama3_scaling_is_tried() -> None:
    turns = (
        2 * torch.pi * LLAMA3["rope_theta"] ** (torch.arange(4) / 4)
    )  # tokens of a whole turn, of each half-dimension
    assert (turns < 40 / 4).any()
    assert ((turns > 40 / 4) & (turns < 40)).any()
    assert (turns > 40).any()


def test_a_language_models_checkpoint(tmp_path: Path) -> None:
    model = make("llama")
    outer = LlamaForCausalLM(model.config)
    outer.model.load_state_dict(model.state_dict())
    outer.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


def test_what_llamas_older_files_leave_out(tmp_path: Path) -> None:
    """Theta is 10,000, and there are as many key heads as query heads."""
    model = make("llama", num_key_value_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, "num_key_value_heads", "head_dim", "rope_parameters")
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


@pytest.mark.parametrize("kind", CLASSES)
def test_a_head_wider_than_its_share(tmp_path: Path, kind: str) -> None:
    if kind == "qwen2":
        pytest.skip("has no head_dim of its own")
    model = make(kind, head_dim=16)
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"rope_parameters": {**LLAMA3, "rope_type": "yarn"}}, "rope_type 'yarn'"),
        ({"rope_parameters": {**LLAMA3, "low_freq_factor": None}}, "low_freq_factor"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    make("llama").save_pretrained(tmp_path)
    rewrite(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=named):
        engine_on(tmp_path)


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    make("llama").save_pretrained(tmp_path)
    rewrite(tmp_path, model_type="pplx_contextual_qwen3_5")
    with pytest.raises(CheckpointError, match=r"'pplx_contextual_qwen3_5' is not served; known: .*'modernbert'"):
        engine_on(tmp_path)
