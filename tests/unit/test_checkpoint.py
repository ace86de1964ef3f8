"""Checkpoint folders written on the spot: what sentence-transformers would make of them is what must come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rose_backend.config import HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint import read_checkpoint

OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}
CONFIG = {"model_type": "bert", "vocab_size": 30, "max_position_embeddings": 512}


class Folder:
    """A checkpoint folder in the making; files are given as JSON values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("config.json", CONFIG)

    def write(self, name: str, values: Any) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(values if isinstance(values, str) else json.dumps(values))

    def modules(self, *kinds: str, old: bool = False) -> None:
        paths = ["" if index == 0 else f"{index}_{kind}" for index, kind in enumerate(kinds)]
        entries = [
            {"idx": index, "name": str(index), "path": path, "type": OLD + kind if old else NEW.get(kind, OLD + kind)}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ]
        self.write("modules.json", entries)

    def pooling(self, values: Any) -> None:
        self.modules("Transformer", "Pooling")
        self.write("1_Pooling/config.json", values)

    def refusal(self) -> str:
        with pytest.raises(CheckpointError) as refusal:
            read_checkpoint(self.path)
        return str(refusal.value)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_minilm(minilm: Path) -> None:
    checkpoint = read_checkpoint(minilm)
    assert checkpoint.head == HeadConfig(PoolingMode.MEAN, normalize=True)
    assert (checkpoint.model_type, checkpoint.vocab_size, checkpoint.max_length) == ("bert", 30522, 256)
    assert (checkpoint.lower_case, dict(checkpoint.prompts), checkpoint.default_prompt_name) == (False, {}, None)


def test_without_modules_mean_and_no_normalize(folder: Folder) -> None:
    assert read_checkpoint(folder.path).head == HeadConfig(PoolingMode.MEAN, normalize=False)


@pytest.mark.parametrize("old", [True, False])
def test_old_and_new_type_strings(folder: Folder, old: bool) -> None:
    folder.modules("Transformer", "Pooling", "Normalize", old=old)
    folder.write("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    assert read_checkpoint(folder.path).head == HeadConfig(PoolingMode.CLS, normalize=True)


def test_without_a_normalize_module_nothing_is_normalized(folder: Folder) -> None:
    folder.pooling({"pooling_mode": "mean"})
    assert read_checkpoint(folder.path).head.normalize is False


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("kind", ["Dense", "LSTM", "WordWeights"])
def test_unknown_modules_are_refused_by_name(folder: Folder, kind: str, old: bool) -> None:
    folder.modules("Transformer", "Pooling", kind, old=old)
    folder.write("1_Pooling/config.json", {"pooling_mode": "mean"})
    assert repr(kind) in folder.refusal()


@pytest.mark.parametrize(
    "kinds",
    [
        ("Pooling", "Transformer"),
        ("Transformer", "Normalize", "Pooling"),
        ("Pooling",),
        ("Transformer", "Pooling", "Pooling"),
    ],
)
def test_modules_in_another_order_are_refused(folder: Folder, kinds: tuple[str, ...]) -> None:
    folder.modules(*kinds)
    assert "modules.json" in folder.refusal()


def test_a_transformer_in_its_own_folder_is_refused(folder: Folder) -> None:
    folder.write("0_Transformer/config.json", CONFIG)
    folder.write("modules.json", [{"idx": 0, "name": "0", "path": "0_Transformer", "type": OLD + "Transformer"}])
    assert "0_Transformer" in folder.refusal()


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, PoolingMode.MEAN),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, PoolingMode.CLS),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, PoolingMode.LAST),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": False}, PoolingMode.MEAN),  # all false
        ({"word_embedding_dimension": 8}, PoolingMode.MEAN),
        ({"pooling_mode": "mean"}, PoolingMode.MEAN),
        ({"pooling_mode": "cls", "embedding_dimension": 8}, PoolingMode.CLS),
        ({"pooling_mode": "lasttoken"}, PoolingMode.LAST),
        ({"pooling_mode": ["lasttoken"]}, PoolingMode.LAST),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, PoolingMode.CLS),  # the new key wins
    ],
)
def test_pooling(folder: Folder, values: dict[str, Any], mode: PoolingMode) -> None:
    folder.pooling(values)
    assert read_checkpoint(folder.path).head.pooling is mode


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "['cls', 'mean']"),
        ({"pooling_mode": ["mean", "cls"]}, "['mean', 'cls']"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)
def test_pooling_that_is_not_served_is_refused_by_name(folder: Folder, values: dict[str, Any], named: str) -> None:
    folder.pooling(values)
    refusal = folder.refusal()
    assert named in refusal
    assert str(Path("1_Pooling/config.json")) in refusal


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 512),
        ({"sentence_bert_config.json": {"max_seq_length": 128}}, 128),
        ({"sentence_bert_config.json": {"max_seq_length": 4096}}, 512),
        ({"sentence_roberta_config.json": {"max_seq_length": 100}}, 100),
        ({"sentence_distilbert_config.json": {"max_seq_length": 101}}, 101),
        ({"sentence_camembert_config.json": {"max_seq_length": 102}}, 102),
        ({"sentence_albert_config.json": {"max_seq_length": 103}}, 103),
        ({"sentence_xlm-roberta_config.json": {"max_seq_length": 104}}, 104),
        ({"sentence_xlnet_config.json": {"max_seq_length": 105}}, 105),
        ({"tokenizer_config.json": {"model_max_length": 200}}, 200),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, 512),
        ({"tokenizer_config.json": {"model_max_length": 1e30}}, 512),
        ({"tokenizer_config.json": {}}, 512),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 128},
                "tokenizer_config.json": {"model_max_length": 64},
            },
            128,
        ),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": None, "do_lower_case": False},
                "tokenizer_config.json": {"model_max_length": 64},
            },
            64,
        ),
    ],
)
def test_max_length(folder: Folder, files: dict[str, Any], expected: int) -> None:
    for name, values in files.items():
        folder.write(name, values)
    assert read_checkpoint(folder.path).max_length == expected


def test_prompts(folder: Folder) -> None:
    values = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    folder.write("config_sentence_transformers.json", values)
    checkpoint = read_checkpoint(folder.path)
    assert dict(checkpoint.prompts) == {"query": "q: ", "document": ""}
    assert checkpoint.default_prompt_name == "query"


def test_a_default_prompt_that_is_not_there_is_refused(folder: Folder) -> None:
    values = {"prompts": {"query": "q: "}, "default_prompt_name": "passage"}
    folder.write("config_sentence_transformers.json", values)
    refusal = folder.refusal()
    assert "'passage'" in refusal
    assert "['query']" in refusal


@pytest.mark.parametrize("lower", [True, False])
def test_do_lower_case(folder: Folder, lower: bool) -> None:
    folder.write("sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": lower})
    assert read_checkpoint(folder.path).lower_case is lower


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a folder"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_checkpoint(tmp_path)


def test_a_missing_pooling_config_is_named(folder: Folder) -> None:
    folder.modules("Transformer", "Pooling")
    assert str(Path("1_Pooling/config.json")) in folder.refusal()


@pytest.mark.parametrize(
    "name", ["config.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("text", ["{", "[1]", "null", ""])
def test_bad_json_is_named(folder: Folder, name: str, text: str) -> None:
    folder.write(name, text)
    assert name in folder.refusal()


@pytest.mark.parametrize("text", ["[", "{}", "null", "[1]", '[{"idx": 0}]'])
def test_bad_modules_json_is_named(folder: Folder, text: str) -> None:
    folder.write("modules.json", text)
    assert "modules.json" in folder.refusal()


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, "many", -1])
def test_sizes_that_are_no_sizes_are_named(folder: Folder, key: str, value: Any) -> None:
    folder.write("config.json", {**CONFIG, key: value})
    assert key in folder.refusal()


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),  # the usual pad is 1
        ({"model_type": "camembert", "max_position_embeddings": 514, "pad_token_id": 0}, 513),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
        ({"model_type": "nomic_bert", "n_positions": 8192, "max_trained_positions": 2048}, 8192),
        ({"model_type": "nomic_bert", "max_position_embeddings": 2048}, 2048),
        (
            {
                "model_type": "nomic_bert",
                "max_position_embeddings": 2048,
                "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
            },
            8192,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_lengths_by_family(folder: Folder, config: dict[str, Any], length: int) -> None:
    """Without `max_seq_length`; with a larger one too."""
    folder.write("config.json", {"vocab_size": 30, **config})
    assert read_checkpoint(folder.path).max_length == length
    folder.write("sentence_bert_config.json", {"max_seq_length": 100_000})
    assert read_checkpoint(folder.path).max_length == length


def test_no_positions_behind_the_pad(folder: Folder) -> None:
    folder.write("config.json", {"vocab_size": 30, "model_type": "roberta", "max_position_embeddings": 2})
    assert "max_position_embeddings 2 leaves no position behind pad_token_id 1" in folder.refusal()
