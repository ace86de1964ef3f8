"""From logits to scores, and from scores to ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rose_backend.config import Activation
from rose_backend.errors import InvalidArgumentError
from rose_client.chunking import ChunkLimits, split
from rose_client.reranking import (
    RankedDocument,
    Scores,
    check_top_n,
    encode_query,
    join_scores,
    ranked,
    rerank_options,
    score_inference,
)
from rose_ensemble.options import RequestOptions
from rose_ensemble.scores import scores_of

_LOGITS = np.array([[-200.0, -89.0, -17.5, -1.0, -0.0, 0.3, 17.0, 18.0, 19.0, 200.0]], np.float32)


@pytest.mark.parametrize("activation", [Activation.SIGMOID, Activation.TANH, Activation.IDENTITY])
def test_activations_are_torchs(activation: Activation) -> None:
    expected = getattr(torch.nn, activation.value)()(torch.from_numpy(_LOGITS)).numpy()
    with np.errstate(all="raise", under="ignore"):
        scores = scores_of(_LOGITS, activation)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-7)


def _scores(*logits: float) -> Scores:
    array = np.array(logits, np.float32)
    return Scores(scores_of(array, Activation.SIGMOID), array, np.ones(len(logits), np.int32))


def test_equal_scores_do_not_break_the_order() -> None:
    scores = _scores(18.0, 30.0, 19.0, -150.0, -120.0, -200.0)
    assert scores.scores[:3].tolist() == [1.0, 1.0, 1.0]
    assert scores.scores[3:].tolist() == [0.0, 0.0, 0.0]
    assert [entry.index for entry in ranked(scores)] == [1, 2, 0, 4, 3, 5]


def test_equal_logits_keep_their_order() -> None:
    """What MiniLM's cosine gives B24's documents: two of them are the same."""
    found = ranked(_scores(0.6725, -0.0508, 0.0670, -0.0508))
    assert [entry.index for entry in found] == [0, 2, 1, 3]
    assert found[0] == RankedDocument(0, float(_scores(0.6725).scores[0]), float(np.float32(0.6725)))


@pytest.mark.parametrize(
    ("top_n", "expected"), [(None, [1, 0, 2]), (1, [1]), (2, [1, 0]), (3, [1, 0, 2]), (9, [1, 0, 2])]
)
def test_top_n(top_n: int | None, expected: list[int]) -> None:
    check_top_n(top_n)
    assert [entry.index for entry in ranked(_scores(1.0, 2.0, -1.0), top_n)] == expected


@pytest.mark.parametrize("top_n", [0, -1, True, 1.5])
def test_top_n_that_cannot_be_meant(top_n: Any) -> None:
    with pytest.raises(ValueError, match=r"top_n is .*: ask for at least 1"):
        check_top_n(top_n)


def test_a_query_is_one_text() -> None:
    assert encode_query("thé") == b"th\xc3\xa9"
    with pytest.raises(TypeError, match="query is a list, not a string"):
        encode_query(["tea"])  # type: ignore[arg-type]


def test_a_request() -> None:
    options = rerank_options("Find tea", {"truncate": False}, raw_scores=True)
    sent = score_inference("rank", b"q", [b"a", b"b"], options, 2.0)
    inputs = [(tensor.name, list(tensor.shape)) for tensor in sent.request.inputs]
    assert inputs == [("QUERY", [1, 1]), ("DOCUMENT", [1, 2])]
    told = {
        name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in sent.request.parameters.items()
    }
    assert told == {"truncate": False, "instruction": "Find tea", "raw_scores": True, "timeout": 2_000_000}
    assert sent.seconds == 2.0
    assert rerank_options(None, {}, raw_scores=False) == {}


def test_chunks_are_joined_in_order() -> None:
    joined = join_scores([_scores(1.0, 2.0), _scores(-1.0)])
    assert joined.logits.tolist() == [1.0, 2.0, -1.0]
    assert joined.token_counts.tolist() == [1, 1, 1]


def test_the_query_counts_with_every_document() -> None:
    documents = [b"four"] * 10  # 3 tokens each
    assert [len(chunk.texts) for chunk in split(documents, ChunkLimits(max_tokens=30))] == [10]
    assert [len(chunk.texts) for chunk in split(documents, ChunkLimits(max_tokens=30), 7)] == [3, 3, 3, 1]


@pytest.mark.parametrize("name", ["normalize", "dimensions", "prompt", "prompt_name", "input_type"])
def test_a_reranker_does_not_know_what_embedding_models_do(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{name}' is not known; known: .*'instruction'.*'raw_scores'"):
        RequestOptions.parse({name: "x"}, scoring=True)


@pytest.mark.parametrize("name", ["instruction", "raw_scores"])
def test_an_embedding_model_does_not_know_what_rerankers_do(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{name}' is not known"):
        RequestOptions.parse({name: "x"})


def test_options_of_a_reranker() -> None:
    options = RequestOptions.parse({"raw_scores": "true", "instruction": "Find tea", "traceparent": "0"}, scoring=True)
    assert (options.raw_scores, options.instruction, options.truncate) == (True, "Find tea", True)
    with pytest.raises(InvalidArgumentError, match="'raw_scores' is 1, not a boolean"):
        RequestOptions.parse({"raw_scores": 1}, scoring=True)
