"""Tokenizers that cannot be read, texts they cannot express, and one tokenizer under many threads."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint, read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenization import TextTokenizer
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep
from tests.support.cases import POT_IDS, TEA_IDS
from tests.support.checkpoints import SHAPE, copy_tokenizer, write_json

_VOCABULARY = {"tea": 0, "a": 1, "[UNK]": 2}


def _word_level(folder: Path, **overrides: Any) -> Checkpoint:
    """A checkpoint whose tokenizer knows two words and adds nothing of its own."""
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": _VOCABULARY, "unk_token": "[UNK]"},
    }
    write_json(folder / "config.json", {**SHAPE, "model_type": "bert"})
    write_json(folder / "tokenizer.json", {**values, **overrides})
    return read_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 5}'])
def test_unusable_file(tmp_path: Path, content: str) -> None:
    checkpoint = _word_level(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TextTokenizer(checkpoint)


def test_a_word_no_vocabulary_expresses_is_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"tea": 0, "a": 1}, "unk_token": "[UNK]"}
    tokenizer = TextTokenizer(_word_level(tmp_path, model=model))
    assert tokenizer.encode(["tea", "a tea"]) == [[0], [1, 0]]
    with pytest.raises(InvalidArgumentError, match=r"TEXT cannot be tokenized: .*UNK"):
        tokenizer.encode(["tea", "violin"])


def test_texts_that_cannot_be_tokenized_fail_alone(minilm: Path, tmp_path: Path) -> None:
    """One call tokenizes many requests; a vocabulary without an unknown token makes it raise for all of them."""
    copy_tokenizer(minilm, tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    values["model"]["unk_token"] = "[nothing]"
    write_json(tmp_path / "tokenizer.json", values)
    step = TokenizeStep(dataclasses.replace(read_checkpoint(minilm), folder=tmp_path), TextLimits())
    requests = (["tea"], ["tea", "\u2603"], ["pot"])
    good, poisoned, other = step.run([TokenizeInput(texts, (1, len(texts)), RequestOptions(), 0) for texts in requests])
    assert isinstance(poisoned, InvalidArgumentError)
    assert "TEXT cannot be tokenized" in str(poisoned)
    for output, ids in ((good, TEA_IDS), (other, POT_IDS)):
        assert isinstance(output, TokenizeOutput)
        assert output.work.input_ids.tolist() == list(ids)


def test_do_lower_case_goes_before_the_files_own_normalizer(tmp_path: Path) -> None:
    checkpoint = _word_level(tmp_path, normalizer={"type": "Replace", "pattern": {"String": "cup"}, "content": "tea"})
    assert TextTokenizer(checkpoint).encode(["CUP cup"]) == [[2, 0]]
    assert TextTokenizer(dataclasses.replace(checkpoint, lower_case=True)).encode(["CUP cup"]) == [[0, 0]]


def test_one_tokenizer_serves_all_threads(minilm: Path) -> None:
    """The same object, half of the calls refusing what the other half cuts; see huggingface/tokenizers#537."""
    tokenizer, text = TextTokenizer(read_checkpoint(minilm)), "stone " * 300

    def wrong(thread: int) -> int:
        count = 0
        for call in range(100):
            truncate = (thread + call) % 2 == 0
            try:
                tokens = tokenizer.fit(tokenizer.encode([text]), truncate=truncate, direction="right")
                count += not truncate or tokens.lengths.tolist() != [256]
            except InvalidArgumentError:
                count += truncate
        return count

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(wrong, range(8))) == 0
