"""Tiny random NomicBERT checkpoints: the engine on the CPU against transformers, and against layers written out here.

transformers knows no biases; the layers written out do.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import NomicBertConfig, NomicBertModel

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
HIDDEN, HEADS, LAYERS = 32, 4, 2
EPS = 1e-7
TRAINED = 8  # tokens, where the rotation is scaled
HUB = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": EPS,
    "max_trained_positions": LIMIT,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": HIDDEN,
    "n_head": HEADS,
    "n_inner": 48,
    "n_layer": LAYERS,
    "n_positions": LIMIT,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": VOCAB,
}
"""The keys of nomic-embed-text-v1.5's file."""


def tiny(**changes: object) -> NomicBertConfig:
    values = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 48,
        "max_position_embeddings": LIMIT,
        "layer_norm_eps": EPS,
    }
    return NomicBertConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def model() -> NomicBertModel:
    return randomised(NomicBertModel(tiny()), spread=0.2)


@pytest.fixture
def folder(model: NomicBertModel, tmp_path: Path) -> Path:
    """As on the hub: its names of tensors and its keys."""
    model.save_pretrained(tmp_path)
    assert "encoder.layers.0.mlp.fc12.weight" in load_file(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HUB))
    return tmp_path


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_equals_transformers(model: NomicBertModel, folder: Path, lengths: tuple[int, ...]) -> None:
    assert_equals(folder, model, sequences(lengths, VOCAB))


@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_pooled(model: NomicBertModel, folder: Path, pooling: PoolingMode) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    assert_close(embed(engine_on(folder, pooling), ids), expected(model, ids, pooling))


def test_the_keys_of_transformers(model: NomicBertModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], VOCAB))


def test_the_base_is_1000_where_none_is_given(model: NomicBertModel, folder: Path) -> None:
    assert model.config.rope_parameters["rope_theta"] == 1000.0
    rewrite(folder, "rotary_emb_base")
    assert_equals(folder, model, sequences(LENGTHS["unequal"], VOCAB))


def test_token_types(model: NomicBertModel, folder: Path) -> None:
    ids = sequences(LENGTHS["unequal"], VOCAB)
    types = [[int(place > len(row) // 2) for place in range(len(row))] for row in ids]
    for actual, row, kinds in zip(hidden_states(folder, ids, types), ids, types, strict=True):
        with torch.inference_mode():
            right = model(torch.tensor([row]), token_type_ids=torch.tensor([kinds])).last_hidden_state[0]
        assert_close(actual, right)


def written_out(tensors: dict[str, torch.Tensor], ids: list[int], theta: float = 1000.0) -> torch.Tensor:
    """The layers by the names on the hub, one sequence, biases where there are any."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, tensors[name + ".weight"], tensors.get(name + ".bias"))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (HIDDEN,), tensors[name + ".weight"], tensors[name + ".bias"], EPS)

    half = HIDDEN // HEADS // 2
    angles = torch.arange(len(ids))[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)

    words, types = (tensors[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "token_type"))
    x = norm("emb_ln", words[torch.tensor(ids)] + types[0])
    for index in range(LAYERS):
        at = f"encoder.layers.{index}."
        qkv = linear(at + "attn.Wqkv", x).view(len(ids), 3, HEADS, -1).permute(1, 2, 0, 3)
        weights = (turned(qkv[0]) @ turned(qkv[1]).mT * (2 * half) ** -0.5).softmax(-1)
        mixed = (weights @ qkv[2]).transpose(0, 1).flatten(1)
        x = norm(at + "norm1", x + linear(at + "attn.out_proj", mixed))
        wide = F.silu(linear(at + "mlp.fc12", x)) * linear(at + "mlp.fc11", x)
        x = norm(at + "norm2", x + linear(at + "mlp.fc2", wide))
    return x


@pytest.mark.parametrize("biased", [(), ("qkv_proj_bias",), ("mlp_fc1_bias",), ("mlp_fc2_bias",)], ids=str)
def test_biases(folder: Path, biased: tuple[str, ...]) -> None:
    parts = {"qkv_proj_bias": ("Wqkv", "out_proj"), "mlp_fc1_bias": ("fc11", "fc12"), "mlp_fc2_bias": ("fc2",)}
    tensors = load_file(folder / "model.safetensors")
    torch.manual_seed(3)
    for part in [name for key in biased for name in parts[key]]:
        for name in [name for name in tensors if f".{part}." in name]:
            tensors[name.replace(".weight", ".bias")] = torch.randn(len(tensors[name])) * 0.2
    save_file(tensors, folder / "model.safetensors")
    rewrite(folder, **dict.fromkeys(biased, True))
    ids = sequences(LENGTHS["unequal"], VOCAB)
    for actual, row in zip(hidden_states(folder, ids), ids, strict=True):
        assert_close(actual, written_out(tensors, row))


def scaled(model: NomicBertModel) -> NomicBertModel:
    """The same weights with dynamic scaling beyond `TRAINED` tokens, by a factor of 2."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    other = NomicBertModel(tiny(max_position_embeddings=TRAINED, rope_parameters=rope))
    other.load_state_dict(model.state_dict())
    return other.eval()


STRETCHED = (1, 2, TRAINED - 1, TRAINED, TRAINED + 1, TRAINED + 2, LIMIT - 1, LIMIT, 3)


def fresh(model: NomicBertModel, row: list[int]) -> torch.Tensor:
    """transformers keeps the base of the longest sequence so far: each gets a model that has seen no other."""
    with torch.inference_mode():
        hidden: torch.Tensor = copy.deepcopy(model)(torch.tensor([row])).last_hidden_state[0]
    return hidden


def test_longer_sequences_than_trained_have_bases_of_their_own(model: NomicBertModel, folder: Path) -> None:
    rewrite(folder, rotary_scaling_factor=2, max_trained_positions=TRAINED)
    ids, oracle = sequences(STRETCHED, VOCAB), scaled(model)
    for actual, row in zip(hidden_states(folder, ids), ids, strict=True):
        assert_close(actual, fresh(oracle, row))
    [plain] = (written_out(load_file(folder / "model.safetensors"), row) for row in ids if len(row) == LIMIT)
    assert largest_difference(fresh(oracle, ids[STRETCHED.index(LIMIT)]), plain) > 1e-3


def test_scaling_under_the_keys_of_transformers(model: NomicBertModel, tmp_path: Path) -> None:
    """Its class takes any length; twice what was trained is served for a factor of 2."""
    oracle = scaled(model)
    oracle.save_pretrained(tmp_path)
    ids = sequences((1, TRAINED, TRAINED + 1, 2 * TRAINED), VOCAB)
    for actual, row in zip(hidden_states(tmp_path, ids), ids, strict=True):
        assert_close(actual, fresh(oracle, row))
    with pytest.raises(CheckpointError, match=f"the {2 * TRAINED} positions"):
        RoseEngine(EngineConfig(tmp_path, 2 * TRAINED + 1, HeadConfig()))


def test_batch_mates_make_no_difference(folder: Path) -> None:
    rewrite(folder, rotary_scaling_factor=2, max_trained_positions=TRAINED)
    ids = sequences(STRETCHED, VOCAB)
    for together, row in zip(hidden_states(folder, ids), ids, strict=True):
        assert_close(together, hidden_states(folder, [row])[0])


def test_without_a_factor_nothing_is_scaled(model: NomicBertModel, folder: Path) -> None:
    rewrite(folder, max_trained_positions=TRAINED)
    assert_equals(folder, model, sequences(STRETCHED, VOCAB))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rotary_emb_interleaved", True),
        ("rotary_emb_fraction", 0.5),
        ("rotary_emb_scale_base", 512),
        ("prenorm", True),
        ("causal", True),
        ("use_rms_norm", True),
        ("moe_every_n_layers", 2),
        ("num_experts", 8),
        ("activation_function", "gelu"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder: Path, key: str, value: Any) -> None:
    rewrite(folder, **{key: value})
    with pytest.raises(CheckpointError, match=f"{key} {value!r}"):
        engine_on(folder)


@pytest.mark.parametrize("key", ["n_embd", "n_head", "n_layer", "layer_norm_epsilon", "vocab_size"])
def test_a_missing_key_is_named(folder: Path, key: str) -> None:
    rewrite(folder, key)
    with pytest.raises(CheckpointError, match=key):
        engine_on(folder)
