"""What the clients send, what they refuse to send, and how they translate errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from rose_client import Embeddings, EmbedOptions, RequestError
from rose_client.wire import encode_texts, infer_arguments, join_embeddings, server_urls

_NONE = EmbedOptions()


@pytest.mark.parametrize("texts", [["tea"], ["tea", "pot", ""]])
def test_texts_travel_as_one_row(texts: list[str]) -> None:
    (tensor,) = infer_arguments("embed", encode_texts(texts), _NONE, 1.0)["inputs"]
    assert (tensor.name(), tensor.datatype(), list(tensor.shape())) == ("TEXT", "BYTES", [1, len(texts)])


def test_options_travel_as_parameters() -> None:
    options = EmbedOptions(normalize=False, input_type="query", dimensions=256)
    arguments = infer_arguments("bge", [b"tea"], options, 2.5)
    assert arguments["parameters"] == {"normalize": False, "input_type": "query", "dimensions": 256}
    assert arguments["model_name"] == "bge"


@pytest.mark.parametrize(("seconds", "microseconds"), [(2.5, 2_500_000), (1e-9, 1)])
def test_both_sides_are_told_the_time_that_is_left(seconds: float, microseconds: int) -> None:
    arguments = infer_arguments("embed", [b"tea"], _NONE, seconds)
    assert (arguments["client_timeout"], arguments["timeout"]) == (seconds, microseconds)


def test_texts_are_sent_in_utf8() -> None:
    assert encode_texts(("tea", "thé", "")) == [b"tea", b"th\xc3\xa9", b""]


def test_one_url_or_several() -> None:
    assert server_urls("localhost:8001") == ("localhost:8001",)
    assert server_urls(["a:1", "b:2"]) == ("a:1", "b:2")


@pytest.mark.parametrize("texts", [[], ()])
def test_no_texts(texts: Any) -> None:
    with pytest.raises(ValueError, match="at least one text"):
        encode_texts(texts)


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        ("tea", "single string"),
        (["tea", 5], r"texts\[1\] is a int"),
        ([None], r"texts\[0\] is a NoneType"),
        ([["tea"]], r"texts\[0\] is a list"),
        ([b"tea"], r"texts\[0\] is a bytes"),
    ],
)
def test_what_is_no_list_of_strings(texts: Any, part: str) -> None:
    with pytest.raises(TypeError, match=part):
        encode_texts(texts)


@pytest.mark.parametrize(
    ("status", "expected"), [("StatusCode.UNAVAILABLE", "UNAVAILABLE"), ("400", "400"), (None, "UNKNOWN")]
)
def test_errors_keep_status_and_words(status: str | None, expected: str) -> None:
    error = RequestError.of(InferenceServerException("queue is full", status))
    assert (error.status, error.message) == (expected, "queue is full")
    assert str(error) == f"{expected}: queue is full"


def test_errors_of_a_chunk_count_as_the_call_does() -> None:
    error = RequestError("INVALID_ARGUMENT", "in ensemble 'embed', TEXT element 3 has 300 tokens").of_texts(256, 256)
    assert error.status == "INVALID_ARGUMENT"
    assert error.message == "texts 256 to 511: in ensemble 'embed', TEXT element 259 has 300 tokens"


def test_answers_of_chunks_follow_one_another() -> None:
    parts = [
        Embeddings(np.array(rows, np.float32), np.array(counts, np.int32))
        for rows, counts in (([[1, 2], [3, 4]], [7, 8]), ([[5, 6]], [9]))
    ]
    joined = join_embeddings(parts)
    assert joined.vectors.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.token_counts.tolist() == [7, 8, 9]
    assert (joined.vectors.dtype, joined.token_counts.dtype) == (np.float32, np.int32)
    assert join_embeddings(parts[:1]) is parts[0]


def test_token_ids_travel_back_to_back() -> None:
    sequences = [np.array([101, 5572, 102], np.int32), np.array([101, 102], np.int32)]
    ids, lengths = infer_arguments("embed", sequences, _NONE, 1.0)["inputs"]
    assert (ids.name(), ids.datatype(), list(ids.shape())) == ("TOKEN_IDS", "INT32", [1, 5])
    assert (lengths.name(), lengths.datatype(), list(lengths.shape())) == ("TOKEN_LENGTHS", "INT32", [1, 2])


def test_outputs_are_asked_for_by_the_option_of_that_name() -> None:
    def asked(**options: Any) -> list[str]:
        outputs = infer_arguments("embed", [b"tea"], EmbedOptions(**options), 1.0)["outputs"]
        return [output.name() for output in outputs]

    assert asked() == ["EMBEDDING", "TOKEN_COUNT"]
    assert asked(outputs="binary,float") == ["EMBEDDING_BINARY", "EMBEDDING", "TOKEN_COUNT"]


def test_codes_are_joined_too() -> None:
    def part(value: int) -> Embeddings:
        codes = np.full((2, 4), value, np.int8)
        return Embeddings(np.empty((2, 0), np.float32), np.array([3, 3], np.int32), int8=codes)

    joined = join_embeddings([part(1), part(-2)])
    assert joined.int8 is not None
    assert joined.int8[:, 0].tolist() == [1, 1, -2, -2]
    assert joined.binary is None
    assert joined.vectors.shape == (4, 0)
