"""SPLADE checkpoints against sentence-transformers' SparseEncoder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from rose_backend.config import SpladeConfig
from rose_backend.errors import CheckpointError
from rose_backend.kernels import packing
from rose_backend.splade_head import SpladeHead
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from tests.support.cases import HARBOUR, VOCAB_SIZE
from tests.support.library import edit_json
from tests.support.splade import make_splade, splade_library
from tests.support.vectors import assert_close
from tests.unit.served import Served

_TEXTS = [HARBOUR, "tea", "", "stone " * 60, "a violin and a tractor", "tea"]
_SPARSE = RequestOptions(outputs=("sparse",))


def _library(folder: Path) -> npt.NDArray[np.float32]:
    model = splade_library(folder)
    rows = [model.encode([text], convert_to_sparse_tensor=False, show_progress_bar=False) for text in _TEXTS]
    return torch.cat(rows).numpy()


def _assert_rows(made: dict[str, npt.NDArray[Any]], right: npt.NDArray[np.float32]) -> None:
    assert set(made) == {"SPARSE_INDEX", "SPARSE_WEIGHT", "SPARSE_LENGTHS"}
    rows = np.zeros_like(right)
    stops = np.cumsum(made["SPARSE_LENGTHS"])
    for row, stop, count in zip(rows, stops, made["SPARSE_LENGTHS"], strict=True):
        ids = made["SPARSE_INDEX"][stop - count : stop]
        assert (np.diff(ids) > 0).all()
        row[ids] = made["SPARSE_WEIGHT"][stop - count : stop]
    assert stops[-1] == len(made["SPARSE_INDEX"]) == len(made["SPARSE_WEIGHT"])
    assert (made["SPARSE_WEIGHT"] > 0).all()
    assert_close(rows, right)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("packed", [(4096,), (4096, VOCAB_SIZE % 4096), ()], ids=str)
def test_no_weight_is_kept_twice(
    tmp_path: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch, packed: tuple[int, ...]
) -> None:
    """A plain part of the vocabulary's matrix, beside others that are packed, keeps no more than itself."""
    monkeypatch.setattr(packing, "packing_pays", lambda width, _depth: width in packed)
    head = SpladeHead(SpladeConfig(), make_splade(tmp_path, minilm), 32, VOCAB_SIZE, torch.device("cpu"))
    plain = [rows for rows, _ in head._columns if not rows.is_mkldnn]
    held = {rows.untyped_storage().data_ptr(): rows.untyped_storage().nbytes() for rows in plain}
    assert sum(held.values()) == sum(4 * rows.numel() for rows in plain)


@pytest.mark.parametrize(
    ("strategy", "activation", "old"),
    [
        ("max", "relu", False),
        pytest.param("sum", "relu", True, marks=pytest.mark.slow),
        pytest.param("max", "log1p_relu", True, marks=pytest.mark.slow),
        ("sum", "log1p_relu", False),
    ],
)
def test_equals_the_library(tmp_path: Path, minilm: Path, strategy: str, activation: str, old: bool) -> None:
    folder = make_splade(tmp_path, minilm, strategy=strategy, activation=activation, old=old)
    right, checkpoint = _library(folder), read_checkpoint(folder)
    assert 0.2 < (right > 0).mean() < 0.99
    assert (checkpoint.matryoshka.dim, checkpoint.similarity) == (VOCAB_SIZE, "dot")
    served = Served(checkpoint)
    rows, alone, dense, unit = served.codes_together(
        [
            (_TEXTS, _SPARSE),
            (_TEXTS[:1], _SPARSE),
            (_TEXTS, RequestOptions()),
            (_TEXTS, RequestOptions(normalize=True)),
        ]
    )
    _assert_rows(rows, right)
    _assert_rows(alone, right[:1])
    assert_close(dense["EMBEDDING"], right)
    assert_close(unit["EMBEDDING"], right / np.linalg.norm(right, axis=1, keepdims=True))


@pytest.mark.parametrize(
    "values",
    [
        {"tie_word_embeddings": False},
        pytest.param({"hidden_act": "relu"}, marks=pytest.mark.slow),
        pytest.param({"layer_norm_eps": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_the_head_of_the_language_model(tmp_path: Path, minilm: Path, values: dict[str, Any]) -> None:
    folder = make_splade(tmp_path, minilm, **values)
    assert_close(Served(read_checkpoint(folder)).embed(_TEXTS), _library(folder))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    return make_splade(tmp_path_factory.mktemp("splade"), minilm)


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling_strategy 'mean' is not served"),
        ("1_SpladePooling/config.json", {"activation_function": "tanh"}, "activation_function 'tanh' is not served"),
        ("1_SpladePooling/config.json", {"top": 9}, "option 'top' is not served"),
        ("config.json", {"architectures": ["RobertaForMaskedLM"]}, "'RobertaForMaskedLM' is not served before"),
        ("config.json", {"hidden_act": "gelu_new"}, "hidden_act 'gelu_new' is not one of"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "transformer_task"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "model_type"),
        ("config_sentence_transformers.json", {"max_active_dims": 64}, "option 'max_active_dims' is not served"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, saved: Path, file: str, values: dict[str, Any], words: str
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "splade"))
    edit_json(folder / file, **values)
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(folder)


def test_token_vectors_come_beside(saved: Path) -> None:
    options = RequestOptions(outputs=("sparse", "token"))
    [made] = Served(read_checkpoint(saved)).codes_together([(_TEXTS, options)])
    assert made["TOKEN_EMBEDDING"].shape == (made["TOKEN_EMBEDDING_LENGTHS"].sum(), 32)
    tensors = {name: values for name, values in made.items() if name.startswith("SPARSE")}
    _assert_rows(tensors, _library(saved))
