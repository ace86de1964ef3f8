"""What a checkpoint's vectors may be cut to: by its files, by its family, by what it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.engine_settings import EngineSettings
from rose_ensemble.matryoshka import Matryoshka
from tests.support.checkpoints import SHAPE, write_json, write_modules

_QWEN3_QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def _folder(path: Path, *, pooling: str = "mean", normalize: bool = True, **config: Any) -> Path:
    write_json(path / "config.json", {**SHAPE, "model_type": "bert", "hidden_size": 1024, **config})
    write_modules(path, normalize=normalize, pooling={"pooling_mode": pooling})
    return path


def _add_dense(path: Path, *sizes: tuple[int, int]) -> None:
    entries = json.loads((path / "modules.json").read_text())
    dense = [{"path": f"{index}_Dense", "type": "sentence_transformers.models.Dense"} for index in range(len(sizes))]
    write_json(path / "modules.json", [*entries[:2], *dense, *entries[2:]])
    for entry, (before, after) in zip(dense, sizes, strict=True):
        write_json(path / entry["path"] / "config.json", {"in_features": before, "out_features": after})


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ({"matryoshka_dimensions": [256, 64, 1024, 64]}, (64, 256)),
        ({"matryoshka_dims": [512]}, (512,)),
        ({"is_matryoshka": True}, range(1, 1024)),
        ({"is_matryoshka": False}, ()),
        ({"is_matryoshka": True, "matryoshka_dimensions": [32]}, (32,)),
        ({"matryoshka_dimensions": None}, ()),
        ({}, ()),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "config_sentence_transformers.json", "1_Pooling/config.json"])
def test_files_say_it(tmp_path: Path, name: str, values: dict[str, Any], sizes: Any) -> None:
    folder = _folder(tmp_path)
    stored = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
    write_json(folder / name, {**stored, **values})
    assert read_checkpoint(folder).matryoshka.sizes == sizes


@pytest.mark.parametrize("value", [[0], [1025], ["64"], [True], 64, "64,128"], ids=str)
def test_what_cannot_be_is_refused(tmp_path: Path, value: Any) -> None:
    folder = _folder(tmp_path, matryoshka_dimensions=value)
    with pytest.raises(CheckpointError, match=r"config\.json: matryoshka_dimensions"):
        read_checkpoint(folder)


def test_qwen3_embedding(tmp_path: Path) -> None:
    folder = _folder(tmp_path, pooling="lasttoken", model_type="qwen3")
    assert read_checkpoint(folder).matryoshka.sizes == ()  # some embedder on the same backbone
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": _QWEN3_QUERY, "document": ""}})
    assert read_checkpoint(folder).matryoshka.sizes == range(32, 1024)


def test_pplx_embed(tmp_path: Path) -> None:
    folder = _folder(tmp_path, normalize=False, model_type="bidirectional_pplx_qwen3")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.matryoshka.sizes == range(128, 1024)
    assert not checkpoint.head.normalize  # so slices are not scaled either


def test_embedding_gemma(tmp_path: Path) -> None:
    folder = _folder(tmp_path, model_type="gemma3_text", hidden_size=768)
    assert read_checkpoint(folder).matryoshka.sizes == ()
    _add_dense(folder, (768, 3072), (3072, 768))
    assert read_checkpoint(folder).matryoshka == Matryoshka(768, (128, 256, 512), origin="family")


@pytest.mark.parametrize(
    ("normalize", "config", "sizes"),
    [(False, {}, (64, 128, 256, 512)), (True, {}, ()), (False, {"moe_every_n_layers": 2}, ())],
    ids=["v1.5", "v1", "v2-moe"],
)
def test_nomic(tmp_path: Path, normalize: bool, config: dict[str, Any], sizes: tuple[int, ...]) -> None:
    folder = _folder(tmp_path, normalize=normalize, model_type="nomic_bert", hidden_size=768, **config)
    assert read_checkpoint(folder).matryoshka.sizes == sizes


def test_files_are_believed_before_the_family(tmp_path: Path) -> None:
    folder = _folder(tmp_path, model_type="bidirectional_pplx_qwen3", matryoshka_dims=[512])
    assert read_checkpoint(folder).matryoshka == Matryoshka(1024, (512,), origin="config.json")


def test_sizes_are_of_what_comes_out_of_the_projections(tmp_path: Path) -> None:
    folder = _folder(tmp_path, is_matryoshka=True)
    _add_dense(folder, (1024, 256))
    assert read_checkpoint(folder).matryoshka == Matryoshka(256, range(1, 256), origin="config.json")


@pytest.mark.parametrize(("truncate_dim", "default", "sizes"), [(128, 128, (128,)), (1024, 0, ()), (None, 0, ())])
def test_truncate_dim(tmp_path: Path, truncate_dim: int | None, default: int, sizes: tuple[int, ...]) -> None:
    folder = _folder(tmp_path)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": truncate_dim})
    matryoshka = read_checkpoint(folder).matryoshka
    assert (matryoshka.default, matryoshka.wanted(None)) == (default, default)
    assert tuple(size for size in matryoshka.sizes if size) == sizes


@pytest.mark.parametrize(
    ("sizes", "dimensions", "expected"),
    [
        ((64, 256), None, 0),
        ((64, 256), 64, 64),
        ((64, 256), 384, 0),
        ((), 384, 0),
        (range(32, 384), 32, 32),
        (range(32, 384), 383, 383),
    ],
)
def test_wanted(sizes: Any, dimensions: int | None, expected: int) -> None:
    assert Matryoshka(384, sizes).wanted(dimensions) == expected


@pytest.mark.parametrize(
    ("sizes", "dimensions", "part"),
    [
        ((), 64, "not trained to be cut; they have 384 elements"),
        ((64, 256), 65, "'dimensions' is 65; this checkpoint has 64, 256, 384"),
        ((64, 256), 385, "'dimensions' is 385"),
        (range(32, 384), 31, "'dimensions' is 31; this checkpoint has any from 32 to 384"),
    ],
)
def test_refusals_say_what_there_is(sizes: Any, dimensions: int, part: str) -> None:
    with pytest.raises(InvalidArgumentError, match=part):
        Matryoshka(384, sizes).wanted(dimensions)


@pytest.mark.parametrize(
    ("setting", "sizes", "default"),
    [
        ("auto", (64,), 64),
        ("off", (), 0),
        ("any", range(1, 384), 64),
        ("128", (128,), 64),
        ("256,128,384", (128, 256), 64),
    ],
)
def test_told(setting: str, sizes: Any, default: int) -> None:
    told = Matryoshka(384, (64,), 64, "config.json").told(EngineSettings(matryoshka=setting).matryoshka)
    assert (told.dim, told.sizes, told.default) == (384, sizes, default)


def test_told_what_cannot_be() -> None:
    with pytest.raises(CheckpointError, match="385 is not a number from 1 to 384"):
        Matryoshka(384).told("128,385")


@pytest.mark.parametrize("setting", ["", "on", "128,", "128;256", "-1", "1.5", "ANY"])
def test_settings_that_mean_nothing(setting: str) -> None:
    with pytest.raises(CheckpointError, match="is not auto, off, any, or lengths"):
        EngineSettings(matryoshka=setting)
