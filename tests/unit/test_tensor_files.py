"""Weights in every form that transformers writes, or wrote: one and the same vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from rose_backend.errors import CheckpointError
from rose_backend.tensor_files import TensorFiles, load_pickled
from tests.support.bge_m3 import assert_flag_embedding, make_m3
from tests.support.checkpoints import make_bert
from tests.support.rerankers import DOCUMENTS, QUERY, library_logits, make_bert_reranker, make_qwen_reranker
from tests.support.vectors import assert_close
from tests.unit.engines import LENGTHS, assert_equals, sequences
from tests.unit.scored import Scored

_SAFETENSORS, _PICKLED = "model.safetensors", "pytorch_model.bin"


def _pickled(folder: Path, *, archive: bool = True) -> dict[str, torch.Tensor]:
    """Put torch's own format in place of safetensors; before release 1.6 it was no archive."""
    tensors = load_file(folder / _SAFETENSORS)
    # As old checkpoints have it, and no model takes it.
    tensors["embeddings.position_ids"] = torch.arange(24)[None]
    torch.save(tensors, folder / _PICKLED, _use_new_zipfile_serialization=archive)
    (folder / _SAFETENSORS).unlink()
    return tensors


def _sharded(folder: Path, name: str, save: Callable[[Any, Path], None], tensors: dict[str, torch.Tensor]) -> None:
    (folder / name).unlink()
    stem, suffix = name.split(".")
    shards = {key: f"{stem}-{index % 3}.{suffix}" for index, key in enumerate(sorted(tensors))}
    for shard in set(shards.values()):
        save({key: tensors[key] for key in tensors if shards[key] == shard}, folder / shard)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": shards}))


def _half(folder: Path) -> None:
    save_file({name: tensor.half() for name, tensor in load_file(folder / _SAFETENSORS).items()}, folder / _SAFETENSORS)


def _old_norm_names(folder: Path) -> None:
    tensors = _pickled(folder)
    names = {name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in tensors}
    torch.save({f"bert.{names[name]}": tensor for name, tensor in tensors.items()}, folder / _PICKLED)


def _beside_a_stale_index(folder: Path) -> None:
    """Somebody joined the shards and left their index."""
    (folder / f"{_SAFETENSORS}.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))


def _beside_another_pickle(folder: Path) -> None:
    torch.save({"embeddings.word_embeddings.weight": torch.zeros(1, 1)}, folder / _PICKLED)


_FORMS: dict[str, Callable[[Path], Any]] = {
    "safetensors": lambda _: None,
    "shards": lambda folder: _sharded(folder, _SAFETENSORS, save_file, load_file(folder / _SAFETENSORS)),
    "pickled": _pickled,
    "pickled, before archives": lambda folder: _pickled(folder, archive=False),
    "pickled shards": lambda folder: _sharded(folder, _PICKLED, torch.save, _pickled(folder)),
    "pickled, names of TensorFlow, a prefix": _old_norm_names,
    "half": _half,
    "a stale index": _beside_a_stale_index,
    "two forms": _beside_another_pickle,
}


@pytest.mark.parametrize("form", _FORMS)
def test_every_form_is_read(tmp_path: Path, form: str) -> None:
    model = make_bert(tmp_path)
    _FORMS[form](tmp_path)
    if form == "half":
        model = BertModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], 101))


def test_bge_m3_as_it_lies_on_the_hub(tmp_path: Path) -> None:
    """No safetensors at all: the model and both of its further heads are pickles."""
    from rose_ensemble.checkpoint import read_checkpoint
    from rose_ensemble.options import RequestOptions
    from tests.unit.served import Served

    model = make_m3(tmp_path)
    _pickled(tmp_path)
    texts = ["tea pot tea", "", "stone <pad> wall"]
    options = RequestOptions(outputs=("float", "sparse", "token"))
    [made] = Served(read_checkpoint(tmp_path)).codes_together([(texts, options)])
    assert_flag_embedding(made, tmp_path, model, texts)


def test_heads_of_rerankers(tmp_path: Path, minilm: Path) -> None:
    folder = make_bert_reranker(tmp_path / "bert", minilm)
    expected = library_logits(folder, QUERY, DOCUMENTS)
    _pickled(folder)
    assert_close(Scored(folder).logits(QUERY, DOCUMENTS), expected)
    folder = make_qwen_reranker(tmp_path / "qwen", tied=False)  # of whose head two rows are read
    before = Scored(folder).logits(QUERY, DOCUMENTS)
    _pickled(folder)
    assert np.array_equal(Scored(folder).logits(QUERY, DOCUMENTS), before)


def test_rows_of_a_pickled_matrix(tmp_path: Path) -> None:
    matrix = torch.arange(12.0).reshape(4, 3)
    torch.save({"m": matrix}, tmp_path / _PICKLED)
    files = TensorFiles(tmp_path)
    assert torch.equal(files.rows("m", (3, 1)), matrix[[3, 1]])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: tensor 'm' has 4 rows, not all of \(4, 1\)"):
        files.rows("m", (4, 1))
    with pytest.raises(CheckpointError, match="no tensor 'n'"):
        files.tensor("n")


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor pytorch_model\.bin, nor an index"):
        TensorFiles(tmp_path)


class _Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run by a pickle",))


def test_pickles_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": torch.zeros(2), "x": _Planted()}, tmp_path / _PICKLED)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a readable file of tensors"):
        TensorFiles(tmp_path)
    assert "run by a pickle" not in capsys.readouterr().out


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_cut_anywhere_is_named(tmp_path: Path, archive: bool) -> None:
    path = tmp_path / _PICKLED
    torch.save({"w": torch.zeros(300)}, path, _use_new_zipfile_serialization=archive)
    whole = path.read_bytes()
    for length in range(0, len(whole), 61):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            load_pickled(path)


@pytest.mark.parametrize("stored", [[torch.zeros(2)], {"state_dict": {"w": torch.zeros(2)}}, {"w": 5}], ids=str)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, stored: Any) -> None:
    torch.save(stored, tmp_path / _PICKLED)
    with pytest.raises(CheckpointError, match="does not hold tensors by name"):
        TensorFiles(tmp_path)
