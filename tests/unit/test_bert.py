"""Random BERTs on the CPU, ragged with unequal mates, against transformers in float32, one sequence at a time."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.core import Batch
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError
from rose_backend.packer import TokenPacker
from tests.support.checkpoints import SHAPE, make_bert, write_json
from tests.support.vectors import assert_close
from tests.unit.builders import request_of

Vectors = npt.NDArray[np.float32]
Pool = Callable[[torch.Tensor], torch.Tensor]

_LONGEST = SHAPE["max_position_embeddings"]
_POOLS: dict[PoolingMode, Pool] = {
    PoolingMode.MEAN: lambda hidden: hidden.sum(0) / len(hidden),
    PoolingMode.CLS: lambda hidden: hidden[0],
    PoolingMode.LAST: lambda hidden: hidden[-1],
}
_SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "relu": {"hidden_act": "relu"},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "one layer, one head": {"num_hidden_layers": 1, "num_attention_heads": 1},
    "many heads": {"hidden_size": 48, "num_attention_heads": 12, "intermediate_size": 16},
    "deep": {"num_hidden_layers": 5},
    "wide": {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512},
    "large eps": {"layer_norm_eps": 0.1},
}


def _sequences(longest: int, seed: int = 0) -> list[list[int]]:
    """Lengths 1, 2, the longest but one and the longest, several of each, among unequal mates."""
    draw = random.Random(seed)
    lengths = [1, longest, 2, longest - 1, 7, 1, longest, 3, 2, longest - 1, 5]
    return [draw.choices(range(SHAPE["vocab_size"]), k=length) for length in lengths]


def _config(folder: Path, head: HeadConfig, longest: int = _LONGEST) -> EngineConfig:
    return EngineConfig(folder, longest, head, token_budget=1024)


def _served(folder: Path, sequences: Sequence[Sequence[int]], head: HeadConfig, longest: int = _LONGEST) -> Vectors:
    """All sequences in one batch, in their own order."""
    batch = TokenPacker(1024, 64).take(deque([request_of(sequences, normalize=head.normalize)]))
    assert isinstance(batch, Batch)
    rows = RoseEngine(_config(folder, head, longest)).step(batch).numpy()
    unsorted = np.empty_like(rows)
    unsorted[batch.order] = rows
    return unsorted


def _reference(model: BertModel, sequences: Sequence[Sequence[int]], pool: Pool, *, normalize: bool = False) -> Vectors:
    with torch.inference_mode():
        rows = torch.stack([pool(model(torch.tensor([ids])).last_hidden_state[0]) for ids in sequences])
    if normalize:
        rows = rows / rows.norm(dim=1, keepdim=True)
    return rows.numpy()


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES.keys())
def test_shapes(tmp_path: Path, shape: dict[str, Any]) -> None:
    model, sequences = make_bert(tmp_path, **shape), _sequences(_LONGEST)
    served = _served(tmp_path, sequences, HeadConfig(PoolingMode.MEAN, normalize=False))
    assert_close(served, _reference(model, sequences, _POOLS[PoolingMode.MEAN]))


@pytest.mark.parametrize("pooling", PoolingMode)
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_and_normalisation(tmp_path: Path, pooling: PoolingMode, normalize: bool) -> None:
    model, sequences = make_bert(tmp_path, seed=1), _sequences(_LONGEST, seed=1)
    served = _served(tmp_path, sequences, HeadConfig(pooling, normalize=normalize))
    assert_close(served, _reference(model, sequences, _POOLS[pooling], normalize=normalize))


def test_mates_do_not_matter(tmp_path: Path) -> None:
    make_bert(tmp_path)
    sequences, head = _sequences(_LONGEST), HeadConfig(PoolingMode.MEAN, normalize=False)
    together = _served(tmp_path, sequences, head)
    alone = np.concatenate([_served(tmp_path, [ids], head) for ids in sequences])
    assert_close(together, alone)


def test_equal_lengths(tmp_path: Path) -> None:
    """No padding would be needed here, so a mask might never be built: as in text-embeddings-inference#882."""
    model = make_bert(tmp_path)
    sequences = [[(7 * row + place) % 101 for place in range(9)] for row in range(6)]
    served = _served(tmp_path, sequences, HeadConfig(PoolingMode.MEAN, normalize=False))
    assert_close(served, _reference(model, sequences, _POOLS[PoolingMode.MEAN]))


def _rename(folder: Path, rename: Callable[[str], str]) -> None:
    path = folder / "model.safetensors"
    save_file({rename(name): tensor for name, tensor in load_file(path).items()}, path)


_RENAMES: dict[str, Callable[[str], str]] = {
    "bert. in front": lambda name: f"bert.{name}",
    "gamma and beta": lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    ),
    "both": lambda name: (
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    ),
}


@pytest.mark.parametrize("rename", _RENAMES.values(), ids=_RENAMES.keys())
def test_other_names_of_the_weights(tmp_path: Path, rename: Callable[[str], str]) -> None:
    model, sequences = make_bert(tmp_path), _sequences(_LONGEST)
    _rename(tmp_path, rename)
    served = _served(tmp_path, sequences, HeadConfig(PoolingMode.MEAN, normalize=False))
    assert_close(served, _reference(model, sequences, _POOLS[PoolingMode.MEAN]))


def test_half_precision_files_are_computed_in_float32(tmp_path: Path) -> None:
    model, sequences = make_bert(tmp_path), _sequences(_LONGEST)
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    served = _served(tmp_path, sequences, HeadConfig(PoolingMode.MEAN, normalize=False))
    assert_close(served, _reference(model.half().float(), sequences, _POOLS[PoolingMode.MEAN]))


def test_sharded_weights(tmp_path: Path) -> None:
    model, sequences = make_bert(tmp_path), _sequences(_LONGEST)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    served = _served(tmp_path, sequences, HeadConfig(PoolingMode.MEAN, normalize=False))
    assert_close(served, _reference(model, sequences, _POOLS[PoolingMode.MEAN]))


def _refusal(folder: Path, longest: int = _LONGEST) -> str:
    with pytest.raises(CheckpointError) as refused:
        RoseEngine(_config(folder, HeadConfig(), longest))
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_act", "mish"), ("position_embedding_type", "relative_key"), ("model_type", "deberta")],
)
def test_what_is_not_served_is_named(tmp_path: Path, key: str, value: str) -> None:
    make_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", {**config, key: value})
    message = _refusal(tmp_path)
    assert key in message
    assert repr(value) in message


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    make_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config[key]
    write_json(tmp_path / "config.json", config)
    assert key in _refusal(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    make_bert(tmp_path)
    path, gone = tmp_path / "model.safetensors", "encoder.layer.1.output.dense.bias"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != gone}, path)
    assert gone in _refusal(tmp_path)


def test_weights_of_another_architecture_are_named(tmp_path: Path) -> None:
    make_bert(tmp_path)
    _rename(tmp_path, lambda name: f"model.{name}")
    message = _refusal(tmp_path)
    assert "embeddings.word_embeddings.weight" in message
    assert "model.embeddings" in message


def test_no_weights(tmp_path: Path) -> None:
    make_bert(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "found neither model.safetensors nor model.safetensors.index.json" in _refusal(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_bert(tmp_path).save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in _refusal(tmp_path)


def test_longer_than_the_positions(tmp_path: Path) -> None:
    make_bert(tmp_path)
    message = _refusal(tmp_path, _LONGEST + 1)
    assert str(_LONGEST + 1) in message
    assert str(_LONGEST) in message


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        ({"max_length": 0}, "max_length"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"token_budget": 7}, "token_budget 7 is smaller than the model's longest sequence, 8"),
    ],
)
def test_limits_that_could_never_work(tmp_path: Path, limits: dict[str, int], part: str) -> None:
    """An impossible budget is refused at start: a sequence over it would wait for ever."""
    with pytest.raises(CheckpointError, match=part):
        EngineConfig(**{"checkpoint": tmp_path, "max_length": 8, "head": HeadConfig(), **limits})
