"""Token ids, against transformers' AutoTokenizer on the same files."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint, read_checkpoint
from rose_ensemble.tokenization import TextTokenizer
from tests.support.cases import BLANKS, HARBOUR
from tests.support.checkpoints import SHAPE, write_json
from tests.support.texts import make_texts

_TEXTS = [
    HARBOUR,
    *BLANKS,
    "tea",
    "caf\u00e9 \u6f6e\u6c50 \U0001f30a e\u0301 \u0627\u0644\u0645\u062f",
    "[CLS] tea [SEP] pot [MASK] [PAD] [UNK]",
    "x" * 500,
    "stone " * 254,
    "stone " * 600,
    *make_texts(20, longest=40, seed=23),
]


@pytest.fixture(scope="module")
def checkpoint(minilm: Path) -> Checkpoint:
    return read_checkpoint(minilm)


@pytest.fixture(scope="module")
def reference(minilm: Path) -> Any:
    return AutoTokenizer.from_pretrained(minilm)


def _tokenizer(checkpoint: Checkpoint, max_length: int) -> TextTokenizer:
    return TextTokenizer(dataclasses.replace(checkpoint, max_length=max_length))


def _fit(tokenizer: TextTokenizer, texts: list[str], direction: str = "right") -> list[list[int]]:
    tokens = tokenizer.fit(tokenizer.encode(texts), truncate=True, direction=direction)
    assert tokens.ids.dtype == tokens.lengths.dtype == np.int32
    return [part.tolist() for part in np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])]


def test_the_file_bakes_in_a_limit_and_padding(minilm: Path) -> None:
    """What these tests stand on: without our switching both off, every text would have 128 ids."""
    values = json.loads((minilm / "tokenizer.json").read_text())
    assert values["truncation"]["max_length"] == 128
    assert values["padding"]["strategy"] == {"Fixed": 128}
    assert len(Tokenizer.from_file(str(minilm / "tokenizer.json")).encode("tea").ids) == 128


def test_baked_in_limit_and_padding_are_switched_off(checkpoint: Checkpoint) -> None:
    tokenizer = TextTokenizer(checkpoint)
    assert [len(ids) for ids in tokenizer.encode(["tea", "stone " * 300])] == [3, 302]


@pytest.mark.parametrize("max_length", [3, 4, 16, 256])
@pytest.mark.parametrize("direction", ["right", "left"])
def test_ids_are_those_of_transformers(checkpoint: Checkpoint, reference: Any, max_length: int, direction: str) -> None:
    reference.truncation_side = direction
    expected = reference(_TEXTS, truncation=True, max_length=max_length)["input_ids"]
    assert _fit(_tokenizer(checkpoint, max_length), _TEXTS, direction) == expected


@pytest.mark.parametrize("words", [253, 254, 255, 600])
def test_the_edge_at_256(checkpoint: Checkpoint, words: int) -> None:
    [ids] = _fit(TextTokenizer(checkpoint), ["stone " * words])
    assert len(ids) == min(words + 2, 256)
    assert (ids[0], ids[-1]) == (101, 102)


def test_what_is_cut_leaves_no_trace(checkpoint: Checkpoint) -> None:
    violin, tractor = _fit(TextTokenizer(checkpoint), ["stone " * 254 + tail for tail in ("violin", "tractor")])
    assert violin == tractor


def test_a_million_spaces(checkpoint: Checkpoint) -> None:
    assert _fit(TextTokenizer(checkpoint), [" " * 1_000_000 + "tea"]) == [[101, 5572, 102]]


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_blank_texts_are_special_tokens_only(checkpoint: Checkpoint, blank: str) -> None:
    assert _fit(TextTokenizer(checkpoint), [blank]) == [[101, 102]]


def test_control_tokens_in_a_text_are_read_as_such(checkpoint: Checkpoint) -> None:
    """The literal reading would be 101 1031 18856 2015 1033 5572 1031 19802 1033 8962 102."""
    assert _fit(TextTokenizer(checkpoint), ["[CLS] tea [SEP] pot"]) == [[101, 101, 5572, 102, 8962, 102]]


def test_truncate_false_admits_what_fits(checkpoint: Checkpoint) -> None:
    tokenizer = TextTokenizer(checkpoint)
    tokens = tokenizer.fit(tokenizer.encode(["stone " * 254, "tea"]), truncate=False, direction="right")
    assert tokens.lengths.tolist() == [256, 3]


def test_truncate_false_names_element_count_and_limit(checkpoint: Checkpoint) -> None:
    tokenizer = TextTokenizer(checkpoint)
    with pytest.raises(InvalidArgumentError, match=r"element 1 has 257 tokens: the limit is 256.*'truncate'"):
        tokenizer.fit(tokenizer.encode(["tea", "stone " * 255]), truncate=False, direction="right")


def test_threads_with_different_limits(checkpoint: Checkpoint, reference: Any) -> None:
    """8 threads x 300 calls. Set on a shared tokenizer, a limit leaks into other threads' calls: tokenizers#537."""
    text = "violin " * 150 + "stone " * 150
    tokenizers = {length: _tokenizer(checkpoint, length) for length in (16, 256)}
    ways = [(length, direction) for length in tokenizers for direction in ("right", "left")]
    expected = {}
    for length, direction in ways:
        reference.truncation_side = direction
        expected[length, direction] = reference(text, truncation=True, max_length=length)["input_ids"]

    def wrong(thread: int) -> int:
        count = 0
        for call in range(300):
            length, direction = ways[(thread + call) % len(ways)]
            count += _fit(tokenizers[length], [text], direction) != [expected[length, direction]]
        return count

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(wrong, range(8))) == 0


def test_one_tokenizer_serves_all_threads(checkpoint: Checkpoint) -> None:
    """The same object, half of the calls refusing what the others cut."""
    tokenizer, text = TextTokenizer(checkpoint), "stone " * 300

    def wrong(thread: int) -> int:
        count = 0
        for call in range(300):
            truncate = (thread + call) % 2 == 0
            try:
                tokens = tokenizer.fit(tokenizer.encode([text]), truncate=truncate, direction="right")
                count += not truncate or tokens.lengths.tolist() != [256]
            except InvalidArgumentError:
                count += truncate
        return count

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(wrong, range(8))) == 0


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
        "model": {"type": "WordLevel", "vocab": {"tea": 0, "a": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
    }
    write_json(folder / "config.json", {**SHAPE, "model_type": "bert"})
    write_json(folder / "tokenizer.json", {**values, **overrides})
    return read_checkpoint(folder)


def test_do_lower_case(tmp_path: Path) -> None:
    checkpoint = _word_level(tmp_path)
    assert TextTokenizer(checkpoint).encode(["Tea tea"]) == [[2, 0]]
    lower = dataclasses.replace(checkpoint, lower_case=True)
    assert TextTokenizer(lower).encode(["Tea tea"]) == [[0, 0]]


def test_do_lower_case_keeps_the_files_normalizer(tmp_path: Path) -> None:
    checkpoint = _word_level(tmp_path, normalizer={"type": "Replace", "pattern": {"String": "cup"}, "content": "tea"})
    lower = dataclasses.replace(checkpoint, lower_case=True)
    assert TextTokenizer(lower).encode(["CUP"]) == [[0]]


def test_a_text_without_any_token_is_refused(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(_word_level(tmp_path))
    with pytest.raises(InvalidArgumentError, match="element 1 has no tokens"):
        tokenizer.fit(tokenizer.encode(["tea", " "]), truncate=True, direction="right")


def test_a_word_no_vocabulary_expresses_is_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"tea": 0, "a": 1}, "unk_token": "[UNK]"}
    tokenizer = TextTokenizer(_word_level(tmp_path, model=model))
    with pytest.raises(InvalidArgumentError, match=r"TEXT cannot be tokenized: .*UNK"):
        tokenizer.encode(["tea", "violin"])


def test_missing_file(tmp_path: Path) -> None:
    checkpoint = _word_level(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        TextTokenizer(checkpoint)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 5}'])
def test_unusable_file(tmp_path: Path, content: str) -> None:
    checkpoint = _word_level(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TextTokenizer(checkpoint)


@pytest.mark.parametrize("max_length", [1, 2])
def test_no_room_beside_the_special_tokens(checkpoint: Checkpoint, max_length: int) -> None:
    with pytest.raises(CheckpointError, match=f"max_length {max_length} leaves no room beside 2 special tokens"):
        _tokenizer(checkpoint, max_length)
