"""What the clients send, what they refuse to send, and how they translate errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tritonclient.grpc import InferInput, InferResult, service_pb2
from tritonclient.utils import InferenceServerException

from rose_client import Embeddings, EmbedOptions, RequestError
from rose_client.inference import Inference
from rose_client.wire import (
    embedding_inference,
    encode_documents,
    encode_texts,
    join_embeddings,
    part_embeddings,
    read_embeddings,
    server_urls,
)

_NONE = EmbedOptions()
_DATATYPES = {"float32": "FP32", "int32": "INT32", "int8": "INT8", "uint8": "UINT8"}


def _inputs(sent: Inference) -> list[tuple[str, str, list[int], bytes]]:
    """Name, datatype, shape and content of each."""
    tensors = zip(sent.request.inputs, sent.request.raw_input_contents, strict=True)
    return [(tensor.name, tensor.datatype, list(tensor.shape), content) for tensor, content in tensors]


def _by_tritonclient(name: str, datatype: str, rows: list[Any]) -> tuple[str, str, list[int], bytes]:
    """The same of a row as tritonclient sends it."""
    array = np.array([rows], np.object_ if datatype == "BYTES" else np.int32)
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return name, datatype, list(array.shape), tensor._get_content()


def _parameters(sent: Inference) -> dict[str, Any]:
    told = sent.request.parameters.items()
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in told if name != "timeout"}


def _response(**tensors: npt.NDArray[Any]) -> service_pb2.ModelInferResponse:
    """An answer with these tensors."""
    response = service_pb2.ModelInferResponse()
    for name, array in tensors.items():
        response.outputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
        assert np.array_equal(InferResult(response).as_numpy(name), array)
    return response


@pytest.mark.parametrize("texts", [["tea"], ["tea", "pot", ""], ["thé", "a" * 300]])
def test_texts_travel_as_one_row(texts: list[str]) -> None:
    sent = embedding_inference("embed", encode_texts(texts), _NONE, 1.0)
    assert _inputs(sent) == [_by_tritonclient("TEXT", "BYTES", encode_texts(texts))]


def test_options_travel_as_parameters() -> None:
    options = EmbedOptions(normalize=False, input_type="query", dimensions=256)
    sent = embedding_inference("bge", [b"tea"], options, 2.5, request_id="mine")
    assert _parameters(sent) == {"normalize": False, "input_type": "query", "dimensions": 256}
    assert (sent.request.model_name, sent.request.id) == ("bge", "mine")


@pytest.mark.parametrize("name", ["timeout", "priority", "sequence_id"])
def test_names_of_tritons_own_are_no_options(name: str) -> None:
    """A `timeout` among them would be one of so many microseconds."""
    options: Any = {name: 5}
    with pytest.raises(ValueError, match=f"{name}: Triton's own"):
        embedding_inference("embed", [b"tea"], options, 1.0)


@pytest.mark.parametrize("content", [None, b"", b"abc", bytes(8)])
def test_an_answer_that_is_not_whole_is_told(content: bytes | None) -> None:
    response = _response(EMBEDDING=np.zeros((1, 1, 4), np.float32), TOKEN_COUNT=np.array([[3]], np.int32))
    if content is None:
        del response.raw_output_contents[:]
    else:
        response.raw_output_contents[0] = content
    with pytest.raises(RequestError, match="INTERNAL: the server's answer does not hold all of EMBEDDING"):
        read_embeddings(response, _NONE)


def test_an_option_that_cannot_travel_is_refused() -> None:
    options: Any = {"prompt": b"query: "}
    with pytest.raises(TypeError, match="prompt is a bytes"):
        embedding_inference("embed", [b"tea"], options, 1.0)


@pytest.mark.parametrize(("seconds", "microseconds"), [(2.5, 2_500_000), (1e-9, 1)])
def test_both_sides_are_told_the_time_that_is_left(seconds: float, microseconds: int) -> None:
    sent = embedding_inference("embed", [b"tea"], _NONE, seconds)
    assert (sent.seconds, sent.request.parameters["timeout"].int64_param) == (seconds, microseconds)


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
        Embeddings({"float": np.array(rows, np.float32)}, np.array(counts, np.int32))
        for rows, counts in (([[1, 2], [3, 4]], [7, 8]), ([[5, 6]], [9]))
    ]
    joined = join_embeddings(parts)
    assert joined.vectors.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.token_counts.tolist() == [7, 8, 9]
    assert (joined.vectors.dtype, joined.token_counts.dtype) == (np.float32, np.int32)
    assert join_embeddings(parts[:1]) is parts[0]


def test_token_ids_travel_back_to_back() -> None:
    sequences = [np.array([101, 5572, 102], np.int32), np.array([101, 102], np.int32)]
    assert _inputs(embedding_inference("embed", sequences, _NONE, 1.0)) == [
        _by_tritonclient("TOKEN_IDS", "INT32", [101, 5572, 102, 101, 102]),
        _by_tritonclient("TOKEN_LENGTHS", "INT32", [3, 2]),
    ]


def test_outputs_are_asked_for_and_read() -> None:
    options = EmbedOptions(outputs=["int8", "binary"], bit_order="lsb")
    sent = embedding_inference("embed", [b"tea", b"pot"], options, 1.0)
    assert _parameters(sent) == {"outputs": "int8,binary", "bit_order": "lsb"}
    assert not sent.request.outputs  # all there are; to name them would cost the server work
    codes, bits = np.array([[[1, -2], [3, 4]]], np.int8), np.array([[[7], [8]]], np.uint8)
    result = _response(EMBEDDING_INT8=codes, EMBEDDING_BINARY=bits, TOKEN_COUNT=np.array([[3, 4]], np.int32))
    answer = read_embeddings(result, options)
    assert (answer.int8.tolist(), answer.binary.tolist()) == ([[1, -2], [3, 4]], [[7], [8]])
    with pytest.raises(ValueError, match=r"'float' is not among the outputs \['int8', 'binary'\]"):
        _ = answer.vectors
    assert join_embeddings([answer, answer]).int8.tolist() == [[1, -2], [3, 4]] * 2


def test_an_output_that_did_not_arrive_is_missed() -> None:
    result = _response(EMBEDDING=np.zeros((1, 1, 4), np.float32), TOKEN_COUNT=np.array([[3]], np.int32))
    assert read_embeddings(result, _NONE).vectors.shape == (1, 4)
    with pytest.raises(RequestError, match="INTERNAL: the server's answer lacks EMBEDDING_INT8"):
        read_embeddings(result, EmbedOptions(outputs=["float", "int8"]))


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        ([], ValueError),
        (["int4"], ValueError),
        (["float", ""], ValueError),
        ("int8", TypeError),
        (None, TypeError),
        (8, TypeError),
        ({"int8"}, TypeError),
    ],
)
def test_outputs_nobody_knows_are_not_sent(outputs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="outputs is"):
        embedding_inference("embed", [b"tea"], EmbedOptions(outputs=outputs), 1.0)


def test_outputs_of_tokens_are_read_by_text() -> None:
    options = EmbedOptions(outputs=["sparse", "token"])
    result = _response(
        SPARSE_INDEX=np.array([[5, 9, 7]], np.int32),
        SPARSE_WEIGHT=np.array([[0.5, 0.25, 1.0]], np.float32),
        SPARSE_LENGTHS=np.array([[2, 0, 1]], np.int32),
        TOKEN_EMBEDDING=np.arange(8, dtype=np.float32).reshape(1, 4, 2),
        TOKEN_EMBEDDING_LENGTHS=np.array([[1, 1, 2]], np.int32),
        TOKEN_COUNT=np.array([[3, 2, 4]], np.int32),
    )
    answer = read_embeddings(result, options)
    sparse = [(vector.index.tolist(), vector.weight.tolist()) for vector in answer.sparse]
    assert sparse == [([5, 9], [0.5, 0.25]), ([], []), ([7], [1.0])]
    assert [vectors.tolist() for vectors in answer.tokens] == [[[0, 1]], [[2, 3]], [[4, 5], [6, 7]]]
    joined = join_embeddings([answer, answer])
    assert len(joined.sparse) == len(joined.tokens) == len(joined.token_counts) == 6


def test_documents_travel_with_their_counts() -> None:
    texts, counts = encode_documents([["tea", "pot"], ["thé"]])
    assert (texts, counts) == ([b"tea", b"pot", b"th\xc3\xa9"], [2, 1])
    assert _inputs(embedding_inference("embed", texts, _NONE, 1.0, counts)) == [
        _by_tritonclient("TEXT", "BYTES", texts),
        _by_tritonclient("CHUNK_COUNTS", "INT32", [2, 1]),
    ]
    whole = Embeddings({"int8": np.array([[1], [2], [3]], np.int8)}, np.array([4, 5, 6], np.int32))
    parts = part_embeddings(whole, counts)
    assert [part.int8.tolist() for part in parts] == [[[1], [2]], [[3]]]
    assert [part.token_counts.tolist() for part in parts] == [[4, 5], [6]]


@pytest.mark.parametrize(
    ("documents", "error", "part"),
    [
        ([], ValueError, "at least one text"),
        ([["tea"], []], ValueError, r"documents\[1\] is empty"),
        (["tea"], TypeError, r"documents\[0\] is a string"),
        ([["tea", 5]], TypeError, r"texts\[1\] is a int"),
    ],
)
def test_what_is_no_list_of_documents(documents: Any, error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        encode_documents(documents)
