"""Text to vector without a server: made checkpoints of several recipes, against sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from tests.support.cases import HARBOUR, VOCAB_SIZE
from tests.support.checkpoints import copy_tokenizer, make_bert, write_json, write_modules
from tests.support.library import library
from tests.support.vectors import assert_close
from tests.unit.served import Served

_TEXTS = [HARBOUR, "tea", "", "stone " * 60, "[CLS] tea [SEP] pot", "caf\u00e9 TEA", "tea"]
_PROMPTS = {"query": "harbour wall: ", "document": "", "passage": "stone "}
_RECIPES: dict[str, dict[str, Any]] = {
    "mean": {},
    "cls": {"pooling": {"pooling_mode": "cls"}},
    "last token": {"pooling": {"pooling_mode": "lasttoken"}},
    "old flags": {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
    "not normalized": {"normalize": False},
    "no modules file": {"modules": False},
    "max_seq_length": {"encoder": {"max_seq_length": 16}},
    "do_lower_case": {"encoder": {"max_seq_length": 20, "do_lower_case": True}},
    "prompts": {"prompts": {"prompts": _PROMPTS, "default_prompt_name": None}},
    "default prompt": {"prompts": {"prompts": _PROMPTS, "default_prompt_name": "query"}},
}


def _make(
    folder: Path,
    tokenizer: Path,
    *,
    pooling: dict[str, Any] | None = None,
    normalize: bool = True,
    modules: bool = True,
    encoder: dict[str, Any] | None = None,
    prompts: dict[str, Any] | None = None,
) -> None:
    make_bert(folder, vocab_size=VOCAB_SIZE)
    copy_tokenizer(tokenizer, folder)
    if modules:
        default = {"word_embedding_dimension": 32, "pooling_mode": "mean"}
        write_modules(folder, normalize=normalize, pooling={"word_embedding_dimension": 32, **(pooling or default)})
        write_json(folder / "sentence_bert_config.json", encoder or {"max_seq_length": None})
    if prompts is not None:
        write_json(folder / "config_sentence_transformers.json", prompts)


@pytest.mark.parametrize("recipe", _RECIPES.values(), ids=_RECIPES.keys())
def test_recipes(tmp_path: Path, minilm: Path, recipe: dict[str, Any]) -> None:
    _make(tmp_path, minilm, **recipe)
    model, checkpoint = library(tmp_path), read_checkpoint(tmp_path)
    assert checkpoint.max_length == model.max_seq_length
    expected = np.concatenate([model.encode([text]) for text in _TEXTS])
    assert_close(Served(checkpoint).embed(_TEXTS), expected)


def test_prompts_by_name_and_type(tmp_path: Path, minilm: Path) -> None:
    _make(tmp_path, minilm, prompts={"prompts": _PROMPTS, "default_prompt_name": None})
    model, checkpoint = library(tmp_path), read_checkpoint(tmp_path)
    served = Served(checkpoint)
    for options, expected in (
        (RequestOptions(prompt_name="query"), model.encode(_TEXTS, prompt_name="query", batch_size=1)),
        (RequestOptions(prompt_name="passage"), model.encode(_TEXTS, prompt_name="passage", batch_size=1)),
        (RequestOptions(prompt="tea "), model.encode(_TEXTS, prompt="tea ", batch_size=1)),
        (RequestOptions(input_type="query"), model.encode_query(_TEXTS, batch_size=1)),
        (RequestOptions(input_type="document"), model.encode_document(_TEXTS, batch_size=1)),
    ):
        assert_close(served.embed_together([(_TEXTS, options)])[0], expected)


def test_real_weights(minilm: Path) -> None:
    model, checkpoint = library(minilm), read_checkpoint(minilm)
    expected = np.concatenate([model.encode([text]) for text in _TEXTS])
    assert_close(Served(checkpoint).embed(_TEXTS), expected)
