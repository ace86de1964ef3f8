"""Random Qwen3s on the CPU, causal and bidirectional, against transformers in float32, one sequence at a time."""

from __future__ import annotations

import json
import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError
from rose_backend.packer import TokenPacker
from tests.support.checkpoints import write_json
from tests.support.vectors import assert_close
from tests.unit.builders import request_of

_LONGEST = 40
_SHAPE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": _LONGEST,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def _make(folder: Path, **config: Any) -> Qwen3Model:
    torch.manual_seed(0)
    model = Qwen3Model(Qwen3Config(**{**_SHAPE, **config})).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2, generator=generator)
    model.save_pretrained(folder)
    return model


def _set(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, **values})


def _sequences() -> list[list[int]]:
    draw = random.Random(3)
    lengths = (1, _LONGEST, 2, _LONGEST - 1, 7, 1, 20, 3, _LONGEST)
    return [draw.choices(range(_SHAPE["vocab_size"]), k=length) for length in lengths]


def _served(folder: Path, pooling: PoolingMode) -> np.ndarray:
    sequences = _sequences()
    engine = RoseEngine(EngineConfig(folder, _LONGEST, HeadConfig(pooling, normalize=False)))
    batch = TokenPacker(1024, 64).take(deque([request_of(sequences, normalize=False)]))
    assert batch is not None
    rows = engine.step(batch).numpy()
    unsorted = np.empty_like(rows)
    unsorted[batch.order] = rows
    return unsorted


def _reference(model: Qwen3Model, pooling: PoolingMode, *, causal: bool) -> np.ndarray:
    rows = []
    for ids in _sequences():
        mask = None if causal else torch.zeros(1, 1, len(ids), len(ids))  # added to the scores: everyone sees everyone
        with torch.inference_mode():
            hidden = model(torch.tensor([ids]), attention_mask=mask, use_cache=False).last_hidden_state[0]
        rows.append(hidden.mean(0) if pooling is PoolingMode.MEAN else hidden[-1])
    return torch.stack(rows).numpy()


@pytest.mark.parametrize(
    "shape",
    [{}, {"num_key_value_heads": 6}, {"num_key_value_heads": 1}, {"head_dim": 32}, {"rms_norm_eps": 0.05}],
    ids=str,
)
def test_causal(tmp_path: Path, shape: dict[str, Any]) -> None:
    model = _make(tmp_path, **shape)
    assert_close(_served(tmp_path, PoolingMode.LAST), _reference(model, PoolingMode.LAST, causal=True))


@pytest.mark.parametrize(
    "switch",
    [{"is_causal": False}, {"use_bidirectional_attention": True}, {"model_type": "bidirectional_pplx_qwen3"}],
    ids=str,
)
def test_bidirectional(tmp_path: Path, switch: dict[str, Any]) -> None:
    model = _make(tmp_path)
    _set(tmp_path, **switch)
    assert_close(_served(tmp_path, PoolingMode.MEAN), _reference(model, PoolingMode.MEAN, causal=False))


def test_the_two_differ(tmp_path: Path) -> None:
    """What the tests above stand on."""
    model = _make(tmp_path)
    causal, bidirectional = (_reference(model, PoolingMode.MEAN, causal=causal) for causal in (True, False))
    assert np.abs(causal - bidirectional).max() > 0.1


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_rope_theta_at_either_place(tmp_path: Path, theta: float) -> None:
    model = _make(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": theta})
    expected = _reference(model, PoolingMode.LAST, causal=True)
    assert_close(_served(tmp_path, PoolingMode.LAST), expected)
    _set(tmp_path, rope_parameters=None, rope_theta=theta)  # as older files have it
    assert_close(_served(tmp_path, PoolingMode.LAST), expected)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type 'yarn'"),
        ({"rope_parameters": None, "rope_theta": None}, "rope_theta"),
    ],
    ids=str,
)
def test_what_is_not_served_is_named(tmp_path: Path, values: dict[str, Any], part: str) -> None:
    _make(tmp_path)
    _set(tmp_path, **values)
    with pytest.raises(CheckpointError, match=part):
        RoseEngine(EngineConfig(tmp_path, _LONGEST, HeadConfig()))
