"""Text to vector without a server: made checkpoints of several recipes, against sentence-transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose_backend.config import HeadConfig, PoolingMode
from rose_client.reranking import Scores, ranked
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from tests.support.cases import HARBOUR, VOCAB_SIZE
from tests.support.checkpoints import copy_tokenizer, make_bert, write_json, write_modules
from tests.support.library import library
from tests.support.vectors import assert_close, cosine
from tests.unit.engines import hidden_states
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


def test_wrong_recipes_on_real_weights(minilm: Path) -> None:
    """Several come close to the right vector: only a largest difference of 1e-5 tells them all from it."""
    checkpoint = read_checkpoint(minilm)
    served = Served(checkpoint)
    [right, tea] = served.embed([HARBOUR, "tea"])
    [first] = Served(replace(checkpoint, head=HeadConfig(PoolingMode.CLS))).embed([HARBOUR])
    [tokens] = served.codes_together([([HARBOUR], RequestOptions(outputs=("token",)))])
    ids = library(minilm).tokenizer(HARBOUR)["input_ids"]
    [second_text] = hidden_states(minilm, [ids], [[1] * len(ids)])
    [prompted] = served.embed(["tea"], prompt="query: ")
    found = [
        cosine(first, right),
        cosine(tokens["TOKEN_EMBEDDING"][1:-1].mean(0), right),
        cosine(second_text.mean(0).numpy(), right),
        cosine(prompted, tea),
    ]
    assert_close(found, [0.635, 0.9935, 0.9931, 0.765], 5e-4)


def test_cosines_of_real_weights_in_place_of_scores(minilm: Path) -> None:
    documents = ["Ships rest in the harbour.", "Bread needs yeast.", "A kettle boils water.", "Bread needs yeast."]
    query, *vectors = Served(read_checkpoint(minilm)).embed(["boats in port", *documents])
    scores = np.stack(vectors) @ query
    assert_close(scores, [0.6725, -0.0508, 0.0670, -0.0508], 5e-5)
    assert [entry.index for entry in ranked(Scores(scores, scores, np.ones(4, np.int32)))] == [0, 2, 1, 3]
