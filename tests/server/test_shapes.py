"""Shapes of TEXT: `[b, n]` comes back as `[b, n, dim]`; everything else is refused and harms nobody.

As in triton-inference-server/server#5972, #3745, #4903 and triton-inference-server/python_backend#82, #109.
"""

from __future__ import annotations

import pytest
import tritonclient.grpc as grpcclient

from tests.support.oracle import Oracle
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.wire import RawGrpc, Tensor, embed, text_tensor

_TEXTS = make_texts(6, longest=5, seed=3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (1, 6), (6, 1), (2, 3), (3, 2)], ids=str)
def test_output_keeps_the_shape(
    grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, shape: tuple[int, int]
) -> None:
    texts = _TEXTS[: shape[0] * shape[1]]
    answer = embed(grpc_client, texts, shape)
    assert answer.vectors.shape == (*shape, 384)
    assert answer.counts.shape == shape
    assert_close(answer.rows, oracle.vectors(texts))  # row by row


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        (text_tensor([], [0]), "TEXT"),
        (text_tensor([], [0, 1]), "TEXT"),
        (text_tensor([], [1, 0]), "TEXT has shape [1, 0]"),
        (text_tensor([], [0, 0]), "TEXT"),
        (text_tensor(["tea", "pot"], [2]), "TEXT"),
        (text_tensor(["tea"], [1, 1, 1]), "TEXT"),
        (text_tensor(["tea"], []), "TEXT"),
        (text_tensor(["tea"], [-1, 1]), "TEXT"),
        (text_tensor(["tea", "pot"], [1, 1]), "unexpected number of string elements 2"),
        (text_tensor(["tea", "pot"], [3, 1]), "expected 3 string elements"),
        (text_tensor(["x"] * 4097, [4097, 1]), "4096"),
        (text_tensor(["x"] * 4097, [1, 4097]), "TEXT holds 4097 texts: the limit is 4096"),
        (text_tensor(["x"] * 4098, [2, 2049]), "TEXT holds 4098 texts: the limit is 4096"),
        (Tensor("TEXT", "BYTES", [1, 1], b"\xff\xff\xff\x7fabc"), "TEXT"),
    ],
    ids=lambda value: str(list(value.shape)) if isinstance(value, Tensor) else "",
)
def test_other_shapes_are_refused(raw_grpc: RawGrpc, oracle: Oracle, tensor: Tensor, part: str) -> None:
    assert part in raw_grpc.refusal([tensor])
    good = raw_grpc.infer([text_tensor(["tea"], [1, 1])])
    assert_close(good["EMBEDDING"][0, 0], oracle.vector("tea"))


def test_as_many_texts_as_allowed(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    texts = ["", "tea", *[""] * 4093, "pot"]
    answer = embed(grpc_client, texts, (2, 2048))
    assert answer.vectors.shape == (2, 2048, 384)
    assert_close(answer.rows, oracle.vectors(texts))


def test_token_lengths_keep_their_shape(raw_grpc: RawGrpc, oracle: Oracle) -> None:
    ids = Tensor("TOKEN_IDS", "INT32", [2, 3], _int32(101, 5572, 102, 101, 8962, 102))
    lengths = Tensor("TOKEN_LENGTHS", "INT32", [2, 1], _int32(3, 3))
    embedding = raw_grpc.infer([ids, lengths])["EMBEDDING"]
    assert embedding.shape == (2, 1, 384)
    assert_close(embedding[:, 0], oracle.vectors(["tea", "pot"]))


def _int32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)
