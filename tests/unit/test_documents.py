"""Documents in chunks: pplx-embed-context's rule and late chunking, against transformers one document at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import Qwen3Model

from rose_backend.admission import Limits
from rose_backend.core import FLOAT, Int32Array, Output, Request, Spans
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError, InvalidArgumentError, RoseError
from rose_backend.metrics import NullMetrics
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.texts import TextLimits, TokenInput, read_chunk_counts
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep
from rose_ensemble.work import Work
from tests.support.checkpoints import make_bert
from tests.support.contextual import DIM, LONGEST, SEPARATOR, contextual_vectors, make_contextual
from tests.support.library import alone, edit_json, library, save_with_library
from tests.support.vectors import assert_close
from tests.unit.builders import Answers
from tests.unit.engines import LIMIT, embed, engine_on, sequences
from tests.unit.served import Served

_DOCUMENTS = [
    ["tea pot", "the harbour wall", "a stone"],
    ["violin"],
    ["", "tractor and rope", ""],
    ["tea pot", "the harbour wall", "a violin and a tractor"],
    ["", ""],
]
_CHUNKS = [chunk for document in _DOCUMENTS for chunk in document]
_COUNTS = [len(document) for document in _DOCUMENTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contextual")


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen3Model:
    return make_contextual(folder)


@pytest.fixture(scope="module")
def served(folder: Path, model: Qwen3Model) -> Served:
    return Served(read_checkpoint(folder))


def _embed(served: Served, documents: Sequence[Sequence[str]], **options: Any) -> npt.NDArray[np.float32]:
    chunks, counts = [chunk for document in documents for chunk in document], [len(document) for document in documents]
    [made] = served.codes_together([(chunks, RequestOptions(**options))], [counts])
    return made["EMBEDDING"]


def test_chunks_see_their_document(served: Served, folder: Path, model: Qwen3Model) -> None:
    expected = contextual_vectors(folder, model, _DOCUMENTS)
    made = _embed(served, _DOCUMENTS)
    assert_close(made, expected)
    assert np.abs(made[1] - made[8]).max() > 1e-3  # equal chunks of documents that end differently
    assert not made[[4, 6, 10, 11]].any()


def test_a_query_is_a_document_of_one_chunk(served: Served, folder: Path, model: Qwen3Model) -> None:
    expected = contextual_vectors(folder, model, [["tea pot"], ["violin"]])
    assert_close(_embed(served, [["tea pot"], ["violin"]]), expected)
    assert_close(served.embed(["tea pot", "violin"]), expected)


def test_documents_share_a_batch_with_texts(served: Served, folder: Path, model: Qwen3Model) -> None:
    ways: list[tuple[Sequence[str], RequestOptions]] = [
        (["tea", "a stone and a rope and a wall"], RequestOptions()),
        (_CHUNKS, RequestOptions(outputs=("int8", "binary", "float"))),
        (["tea pot"], RequestOptions(normalize=True)),
        (_CHUNKS[:3], RequestOptions(dimensions=None, normalize=True)),
    ]
    texts, documents, scaled, chunks = served.codes_together(ways, [None, _COUNTS, None, [2, 1]])
    expected = contextual_vectors(folder, model, _DOCUMENTS)
    assert_close(texts["EMBEDDING"], contextual_vectors(folder, model, [["tea"], ["a stone and a rope and a wall"]]))
    assert_close(documents["EMBEDDING"], expected)
    off = np.abs(documents["EMBEDDING_INT8"] - np.rint(127 * np.tanh(expected)))
    assert off.max() <= 1
    assert (off != 0).mean() < 0.02
    assert documents["EMBEDDING_INT8"][4].tolist() == [0] * DIM
    assert documents["EMBEDDING_BINARY"][4].tolist() == [255] * (DIM // 8)
    sure = np.abs(expected) > 1e-4
    assert (np.unpackbits(documents["EMBEDDING_BINARY"], axis=-1) == (expected >= 0))[sure].all()
    pot = contextual_vectors(folder, model, [["tea pot"]])
    assert_close(scaled["EMBEDDING"], pot / np.linalg.norm(pot))
    cut = contextual_vectors(folder, model, [_CHUNKS[:2], _CHUNKS[2:3]])
    assert_close(chunks["EMBEDDING"], cut / np.linalg.norm(cut, axis=1, keepdims=True))


def _tokenized(step: TokenizeStep, texts: list[str], counts: list[int] | None, **options: Any) -> TokenizeOutput:
    count = None if counts is None else np.array(counts, np.int32)
    [outcome] = step.run([TokenizeInput(texts, (1, len(texts)), RequestOptions(**options), 0, count)])
    if isinstance(outcome, RoseError):
        raise outcome
    return outcome


def _refusal(step: TokenizeStep, texts: list[str], counts: list[int] | None, **options: Any) -> str:
    with pytest.raises(InvalidArgumentError) as refused:
        _tokenized(step, texts, counts, **options)
    return str(refused.value)


@pytest.fixture(scope="module")
def step(folder: Path, model: Qwen3Model) -> TokenizeStep:
    return TokenizeStep(read_checkpoint(folder), TextLimits())


def test_tokens_of_documents(step: TokenizeStep) -> None:
    output = _tokenized(step, _CHUNKS, _COUNTS)
    # 2 + 3 + 2 words and 2 separators; separators are no chunk's.
    assert output.work.lengths.tolist() == [9, 1, 5, 12, 1]
    assert output.token_count.tolist() == [[2, 3, 2, 1, 0, 3, 0, 2, 3, 5, 0, 0]]
    spans = Work.unpack(output.work.pack()).spans
    assert spans is not None
    assert spans.counts.tolist() == _COUNTS
    assert spans.starts.tolist() == [0, 3, 7, 0, 0, 1, 5, 0, 3, 7, 0, 1]
    assert spans.stops.tolist() == [2, 6, 9, 1, 0, 4, 5, 2, 6, 12, 0, 1]


def test_what_a_contextual_checkpoint_refuses(step: TokenizeStep) -> None:
    assert f"TEXT element 1 holds '{SEPARATOR}', which separates" in _refusal(step, ["tea", f"a{SEPARATOR}b"], [2])
    long = ["tea"] * 8 + ["stone " * (LONGEST - 10), "tea", "pot"]
    assert _tokenized(step, long, [8, 3]).work.lengths.tolist() == [15, LONGEST - 6]
    long[9] = "tea " * 7
    assert _tokenized(step, long, [8, 3]).work.lengths.tolist() == [15, LONGEST]
    long[10] = "pot pot"
    words = f"from TEXT element 8 on has {LONGEST + 1} tokens: the limit is {LONGEST}, and documents are never cut"
    assert words in _refusal(step, long, [8, 3])
    assert "from TEXT element 2 on has no tokens" in _refusal(step, ["tea", "pot", ""], [2, 1])
    assert "'late_chunking' is false" in _refusal(step, ["tea", "pot"], [2], late_chunking=False)
    assert "CHUNK_COUNTS does not say what is a document" in _refusal(step, ["tea"], None, late_chunking=True)
    ids = TokenInput(np.array([1, 2], np.int32), np.array([1, 1], np.int32))
    [outcome] = step.run([TokenizeInput(ids, (1, 2), RequestOptions(), 0, np.array([2], np.int32))])
    assert "CHUNK_COUNTS applies to TEXT" in str(outcome)


def test_the_fault_of_one_document_is_its_requests_alone(step: TokenizeStep) -> None:
    inputs = [
        TokenizeInput(texts, (1, 2), RequestOptions(), 0, np.array([2], np.int32))
        for texts in (["tea", "pot"], ["tea", SEPARATOR], ["rope", "wall"])
    ]
    outcomes = step.run(inputs)
    assert [isinstance(outcome, TokenizeOutput) for outcome in outcomes] == [True, False, True]


def test_the_class_tells_a_contextual_checkpoint(tmp_path: Path) -> None:
    make_contextual(tmp_path, contextual=False)
    assert read_checkpoint(tmp_path).separator is None
    step = TokenizeStep(read_checkpoint(tmp_path), TextLimits())
    assert "not trained on documents in chunks; parameter 'late_chunking'" in _refusal(step, ["tea", "pot"], [2])
    edit_json(tmp_path / "config.json", auto_map={"AutoModel": "them/it--modeling.PPLXQwen3ContextualModel"})
    assert read_checkpoint(tmp_path).separator == SEPARATOR
    edit_json(tmp_path / "tokenizer_config.json", sep_token=None)
    assert read_checkpoint(tmp_path).separator == SEPARATOR
    edit_json(tmp_path / "tokenizer_config.json", sep_token="<|chunk|>")
    with pytest.raises(CheckpointError, match=r"'<\|chunk\|>' is not in the vocabulary"):
        TokenizeStep(read_checkpoint(tmp_path), TextLimits())


_PIECES = [["Tides turn twice", " a day at the harbour wall", "."], ["tea"], ["a violin ", "", "and a tractor"]]


@pytest.mark.parametrize("normalize", [True, False])
def test_late_chunking(tmp_path: Path, minilm: Path, normalize: bool) -> None:
    """Against the library's own token vectors of the whole text."""
    folder = save_with_library(tmp_path, minilm, normalize=normalize)
    model, served = library(folder), Served(read_checkpoint(folder))
    rows = []
    for pieces in _PIECES:
        hidden = model.encode("".join(pieces), output_value="token_embeddings", normalize_embeddings=False)
        sizes = [len(model.tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces]
        sizes[0] += 1  # [CLS]
        sizes[-1] += 1  # [SEP]
        assert len(hidden) == sum(sizes)
        for part in hidden.split(sizes):
            vector = part.mean(0) if len(part) else torch.zeros(hidden.shape[1])
            rows.append(torch.nn.functional.normalize(vector, dim=0) if normalize else vector)
    made = _embed(served, _PIECES, late_chunking=True)
    assert_close(made, torch.stack(rows).numpy())
    assert_close(made[3:4], alone(model, ["tea"]))


def test_late_chunking_with_prompts(tmp_path: Path, minilm: Path) -> None:
    """A prompt stands in front of the document, pooled with its first chunk or not at all."""
    for include in (True, False):
        folder = save_with_library(tmp_path / str(include), minilm, include_prompt=include, normalize=False)
        model, served = library(folder), Served(read_checkpoint(folder))
        hidden = model.encode("stone rope tea pot", output_value="token_embeddings")
        made = _embed(served, [["tea", " pot"]], prompt="stone rope ", late_chunking=True)
        # [CLS] stone rope tea | pot [SEP]; without the prompt also without [CLS], as the library has it.
        first = hidden[:4] if include else hidden[3:4]
        assert_close(made, torch.stack([first.mean(0), hidden[4:].mean(0)]).cpu().numpy())


def test_late_chunking_wants_the_mean(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm, pooling="cls")
    step = TokenizeStep(read_checkpoint(folder), TextLimits())
    assert "does not pool the mean" in _refusal(step, ["tea", "pot"], [2], late_chunking=True)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[]], "every document needs at least 1 text"),
        ([[2, 0, 1]], "every document needs at least 1 text"),
        ([[2, -1, 2]], "every document needs at least 1 text"),
        ([[1, 1]], "CHUNK_COUNTS adds up to 2, but TEXT holds 3 texts"),
        ([[2**31 - 1, 2**31 - 1]], "CHUNK_COUNTS adds up to 4294967294"),
    ],
)
def test_chunk_counts_that_do_not_fit(counts: list[list[int]], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        read_chunk_counts(np.array(counts, np.int32), 3)
    assert read_chunk_counts(np.array([[1, 2]], np.int32), 3).tolist() == [1, 2]
    tensor = np.array([[1, 2]], np.int32)
    read = read_chunk_counts(tensor, 3)
    tensor[:] = 9  # the server's memory, which others get
    assert read.tolist() == [1, 2]


def _spans(*documents: Sequence[tuple[int, int]]) -> Spans:
    bounds = np.array([bound for document in documents for bound in document], np.int32).reshape(-1, 2)
    return Spans(np.array([len(document) for document in documents], np.int32), bounds[:, 0], bounds[:, 1])


def _request(ids: Sequence[Sequence[int]], spans: Spans | None, outputs: Output = FLOAT) -> Request:
    flat: Int32Array = np.array([token for row in ids for token in row], np.int32)
    lengths = np.array([len(row) for row in ids], np.int32)
    return Request(flat, lengths, Answers(), normalize=False, spans=spans, outputs=outputs)


def test_documents_spread_over_batches(tmp_path: Path) -> None:
    make_bert(tmp_path)
    engine: RoseEngine = engine_on(tmp_path)
    ids = sequences((7, 3, 12, 1, 5), 101)
    documents = [[(0, 3), (3, 7)], [(1, 1)], [(0, 12), (2, 3), (5, 12)], [(0, 1)], [(4, 5), (0, 5)]]
    results = []
    for budget, most in ((1000, 100), (12, 1), (13, 2)):
        service = RoseService(engine, TokenPacker(budget, most), Limits(101, LIMIT, (), True), NullMetrics())
        mate, request = _request(ids[:2], None), _request(ids, _spans(*documents), FLOAT | Output.BINARY)
        assert service.submit_all([mate, request]) == [None, None]
        service.close()
        outcome: Any = request.reply.wait()  # type: ignore[attr-defined]
        results.append(outcome)
        plain: Any = mate.reply.wait()  # type: ignore[attr-defined]
        assert plain[FLOAT].shape == (2, DIM)
    for outcome in results:
        assert outcome[FLOAT].shape == (9, DIM)
        assert outcome[Output.BINARY].shape == (9, DIM // 8)
        assert not outcome[FLOAT][2].any()
        assert_close(outcome[FLOAT], results[0][FLOAT])
    whole = embed(engine, ids)
    assert_close(results[0][FLOAT][3], whole[2])
    assert_close(results[0][FLOAT][6:7], whole[3:4])


@pytest.mark.parametrize(
    ("spans", "served", "words"),
    [
        (_spans([(0, 2)]), False, "no part has a vector"),
        (_spans([(0, 2)], [(0, 1)]), True, "every sequence needs at least 1 span"),
        (_spans([]), True, "every sequence needs at least 1 span"),
        (_spans([(0, 4)]), True, "outside its sequence"),
        (_spans([(-1, 2)]), True, "outside its sequence"),
        (_spans([(2, 1)]), True, "outside its sequence"),
        (Spans(np.array([2], np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)), True, "add up to 2"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans: Spans, served: bool, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Limits(100, 8, (), served).check(_request([[5, 6, 7]], spans))


def test_work_that_is_cut_short_is_refused() -> None:
    spans = _spans([(0, 1), (1, 3)], [(0, 2)])
    work = Work((1, 3), 7, np.array([3, 2], np.int32), np.arange(5, dtype=np.int32), spans=spans)
    packed = work.pack()
    read = Work.unpack(packed)
    assert (read.shape, read.stamp) == ((1, 3), 7)
    assert (read.lengths.tolist(), read.input_ids.tolist()) == ([3, 2], [0, 1, 2, 3, 4])
    for size in range(4, packed.size - 5):
        with pytest.raises(InvalidArgumentError, match="WORK"):
            Work.unpack(packed[:, :size])
    for place in (0, 1, 4):
        wrong = packed.copy()
        wrong[0, place] = -1
        with pytest.raises(InvalidArgumentError, match="WORK"):
            Work.unpack(wrong)
