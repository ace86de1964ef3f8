"""Every head of a reranker, texts in and logits out, against sentence-transformers and transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer
from transformers import Qwen3ForSequenceClassification

from rose_backend.core import Field
from rose_backend.errors import CheckpointError
from rose_ensemble.options import RequestOptions
from rose_ensemble.score_step import ScoreInput
from rose_ensemble.tokenize_step import TokenizeOutput
from tests.support.library import edit_json
from tests.support.rerankers import (
    DOCUMENTS,
    QUERY,
    edit_tokenizer,
    library_logits,
    library_scores,
    make_bert_reranker,
    make_modernbert_reranker,
    make_qwen_reranker,
    make_roberta_reranker,
    qwen_logits,
    template_ids,
    word_tokenizer,
)
from tests.support.vectors import assert_close, largest_difference
from tests.unit.scored import Scored

_LONG_QUERY = "harbour wall " * 40
_MODERNBERT = {
    "cls": {"classifier_pooling": "cls"},
    "mean": {"classifier_pooling": "mean"},
    "biases": {"classifier_bias": True, "norm_bias": True},
    "relu": {"classifier_activation": "relu", "norm_eps": 1e-3},
}
_MAKERS: dict[str, Callable[[Path, Path], Path]] = {
    "bert": make_bert_reranker,
    "roberta": lambda folder, _: make_roberta_reranker(folder),
    "xlm-roberta": lambda folder, _: make_roberta_reranker(folder, multilingual=True),
    "modernbert": make_modernbert_reranker,
}


@pytest.fixture(params=_MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, minilm: Path) -> Path:
    return _MAKERS[request.param](tmp_path, minilm)


@pytest.mark.parametrize("query", [QUERY, "", _LONG_QUERY], ids=["query", "empty", "long"])
def test_equals_the_library(folder: Path, query: str) -> None:
    expected = library_logits(folder, query, DOCUMENTS)
    assert np.ptp(expected) > 1e-2  # or nothing would be told apart
    assert_close(Scored(folder).logits(query, DOCUMENTS), expected)


def test_batch_mates_and_their_order_change_nothing(folder: Path) -> None:
    scored = Scored(folder)
    alone = np.concatenate([scored.logits(QUERY, [document]) for document in DOCUMENTS])
    # So many tokens that the last layer computes only those that are pooled.
    assert sum(map(len, scored.tokens(QUERY, DOCUMENTS * 20))) > 1024
    first, second = scored.together([(QUERY, DOCUMENTS * 20), ("tea", DOCUMENTS[::-1])])
    assert_close(first, np.tile(alone, 20))
    assert_close(second, library_logits(folder, "tea", DOCUMENTS[::-1]))


@pytest.mark.parametrize("changes", _MODERNBERT.values(), ids=_MODERNBERT.keys())
def test_modernbert_heads(tmp_path: Path, minilm: Path, changes: dict[str, object]) -> None:
    folder = make_modernbert_reranker(tmp_path, minilm, **changes)
    assert_close(Scored(folder).logits(QUERY, DOCUMENTS), library_logits(folder, QUERY, DOCUMENTS))


@pytest.mark.parametrize("kind", _MAKERS)
def test_only_bert_tells_texts_apart_by_type(kind: str, tmp_path: Path, minilm: Path) -> None:
    [output] = Scored(_MAKERS[kind](tmp_path, minilm)).step.run([ScoreInput(QUERY, DOCUMENTS, RequestOptions(), 0)])
    assert isinstance(output, TokenizeOutput)
    fields = {name: values.tolist() for name, values in output.work.fields.items()}
    # [CLS] boats in port [SEP] | ships rest ...
    assert fields == ({Field.TYPE_FROM: [5] * len(DOCUMENTS)} if kind == "bert" else {})


def test_token_types_are_mandatory(tmp_path: Path, minilm: Path) -> None:
    folder = make_bert_reranker(tmp_path, minilm)
    right = Scored(folder).logits(QUERY, DOCUMENTS)
    edit_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    without = Scored(folder).logits(QUERY, DOCUMENTS)
    assert_close(without, library_logits(folder, QUERY, DOCUMENTS))  # the library goes by that key as well
    assert largest_difference(right, without) > 1e-2


def test_what_the_library_writes(tmp_path: Path, minilm: Path) -> None:
    bare = make_bert_reranker(tmp_path / "bare", minilm)
    tanh = torch.nn.Tanh()
    model = CrossEncoder(str(bare), device="cpu", local_files_only=True, max_length=12, activation_fn=tanh)
    saved = tmp_path / "saved"
    model.save_pretrained(str(saved))
    scored = Scored(saved)
    assert (saved / "modules.json").is_file()
    assert scored.checkpoint.max_length == 12
    logits = scored.logits(QUERY, DOCUMENTS)
    assert_close(logits, library_logits(saved, QUERY, DOCUMENTS))
    assert_close(np.tanh(logits), library_scores(saved, QUERY, DOCUMENTS))
    assert largest_difference(logits, Scored(bare).logits(QUERY, DOCUMENTS)) > 1e-2


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_language_model(tmp_path: Path, tied: bool) -> None:
    folder = make_qwen_reranker(tmp_path, tied=tied)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is not tied
    words = word_tokenizer().get_vocab()
    rows = [template_ids(folder, QUERY, document) for document in DOCUMENTS]
    scored = Scored(folder)
    assert scored.tokens(QUERY, DOCUMENTS) == rows
    expected = qwen_logits(folder, rows, yes=words["yes"], no=words["no"])
    assert np.ptp(expected) > 1e-2
    assert_close(scored.logits(QUERY, DOCUMENTS), expected)


def test_instructions(tmp_path: Path) -> None:
    folder = make_qwen_reranker(tmp_path)
    rows = [template_ids(folder, QUERY, document, "Find recipes") for document in DOCUMENTS]
    scored = Scored(folder)
    assert scored.tokens(QUERY, DOCUMENTS, instruction="Find recipes") == rows
    assert rows[0] != template_ids(folder, QUERY, DOCUMENTS[0])


def test_a_decoder_turned_classifier(tmp_path: Path) -> None:
    folder = make_qwen_reranker(tmp_path, classifier=True)
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = [
            float(model(torch.tensor([template_ids(folder, QUERY, document)])).logits) for document in DOCUMENTS
        ]
    assert_close(Scored(folder).logits(QUERY, DOCUMENTS), expected)


def test_a_conversion_scores_as_what_it_was_made_from(tmp_path: Path) -> None:
    """`score.weight` is the difference of two rows of the head."""
    original = make_qwen_reranker(tmp_path / "original")
    converted = make_qwen_reranker(tmp_path / "converted", classifier=True)
    tensors = load_file(original / "model.safetensors")
    words, rows = word_tokenizer().get_vocab(), tensors["model.embed_tokens.weight"]
    tensors["score.weight"] = (rows[words["yes"]] - rows[words["no"]])[None]
    save_file(tensors, converted / "model.safetensors")
    assert_close(Scored(converted).logits(QUERY, DOCUMENTS), Scored(original).logits(QUERY, DOCUMENTS))


def test_weights_for_several_labels_are_refused(tmp_path: Path, minilm: Path) -> None:
    folder = make_bert_reranker(tmp_path, minilm, num_labels=3)
    edit_json(folder / "config.json", id2label={"0": "LABEL_0"})
    with pytest.raises(CheckpointError, match=r"'classifier\.weight' has shape \[3, 32\], expected \[1, 32\]"):
        Scored(folder)


def test_a_missing_head_is_named(tmp_path: Path, minilm: Path) -> None:
    folder = make_bert_reranker(tmp_path, minilm)
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "pooler" not in k}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"pooler\.dense\.weight"):
        Scored(folder)


def test_rows_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = make_qwen_reranker(tmp_path)
    values = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() | {"yes": 5000}
    edit_tokenizer(folder, model={"type": "WordLevel", "vocab": values, "unk_token": "<unk>"})
    with pytest.raises(CheckpointError, match=r"'model\.embed_tokens\.weight' has \d+ rows, not all of \(5000, "):
        Scored(folder)
