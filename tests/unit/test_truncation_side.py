"""The side that is cut where a request names none: the checkpoint's, against sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint import read_checkpoint
from tests.support.library import alone, edit_json, library, save_with_library
from tests.support.rerankers import (
    QUERY,
    edit_tokenizer,
    library_logits,
    make_bert_reranker,
    make_qwen_reranker,
    make_roberta_reranker,
    template_ids,
    word_tokenizer,
)
from tests.support.vectors import assert_close, largest_difference
from tests.unit.scored import Scored
from tests.unit.served import Served

_BAKED_IN = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
_SAID: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]] = {
    "nowhere": ({}, None, "right"),
    "tokenizer_config.json": ({"truncation_side": "left"}, None, "left"),
    "tokenizer.json": ({}, _BAKED_IN, "left"),
    "both": ({"truncation_side": "right"}, _BAKED_IN, "right"),
}
_TEXTS = ["tea", "stone " * 40 + "violin", "violin " + "stone " * 40]
_DOCUMENTS = ["tea", "needs water " * 20 + "yeast", "kettle " + "needs water " * 20]
_RERANKERS: dict[str, Callable[[Path, Path], Path]] = {
    "bert": make_bert_reranker,
    "roberta": lambda folder, _: make_roberta_reranker(folder),
}


def _say(folder: Path, said: str) -> str:
    """Write it into the files; the side that it comes to."""
    config, truncation, side = _SAID[said]
    edit_json(folder / "tokenizer_config.json", truncation_side=None)  # the library writes one
    edit_json(folder / "tokenizer_config.json", **config)
    edit_tokenizer(folder, truncation=truncation)
    return side


@pytest.mark.parametrize("said", _SAID)
def test_texts(tmp_path: Path, minilm: Path, said: str) -> None:
    folder = save_with_library(tmp_path, minilm, max_length=12)
    side = _say(folder, said)
    served = Served(read_checkpoint(folder))
    expected = alone(library(folder), _TEXTS)
    assert_close(served.embed(_TEXTS), expected)
    assert_close(served.embed(_TEXTS, truncation_direction=side), expected)
    other = served.embed(_TEXTS, truncation_direction="left" if side == "right" else "right")
    assert largest_difference(other, expected) > 1e-3


@pytest.mark.parametrize("query", [QUERY, "stone tea " * 40 + "boats"], ids=["query", "long"])
@pytest.mark.parametrize("said", _SAID)
@pytest.mark.parametrize("kind", _RERANKERS)
def test_pairs(tmp_path: Path, minilm: Path, kind: str, said: str, query: str) -> None:
    folder = _RERANKERS[kind](tmp_path, minilm)
    side = _say(folder, said)
    scored, expected = Scored(folder), library_logits(folder, query, _DOCUMENTS)
    assert_close(scored.logits(query, _DOCUMENTS), expected)
    assert_close(scored.logits(query, _DOCUMENTS, truncation_direction=side), expected)
    other = scored.logits(query, _DOCUMENTS, truncation_direction="left" if side == "right" else "right")
    assert largest_difference(other, expected) > 1e-3


@pytest.mark.parametrize("said", _SAID)
def test_the_body_of_a_template(tmp_path: Path, said: str) -> None:
    folder = make_qwen_reranker(tmp_path)
    side = _say(folder, said)
    scored, documents = Scored(folder), ["boats " + "stone " * 200 + "yeast"]
    [cut] = scored.tokens(QUERY, documents)
    assert [cut] == scored.tokens(QUERY, documents, truncation_direction=side)
    assert (word_tokenizer().token_to_id("yeast") in cut) == (side == "left")
    assert cut[-6:] == template_ids(folder, QUERY, "tea")[-6:]


def test_another_side_is_refused(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm)
    edit_json(folder / "tokenizer_config.json", truncation_side="middle")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: truncation_side 'middle' is not one of"):
        Served(read_checkpoint(folder))
