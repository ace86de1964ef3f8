"""From client tensors to texts and token ids: shapes, sizes, encodings."""

from __future__ import annotations

import numpy as np
import pytest

from rose_backend.errors import InvalidArgumentError
from rose_ensemble.texts import TextLimits, check_shape, decode_texts, read_token_input

LIMITS = TextLimits(max_texts=6, max_bytes=20)


def tensor(rows: list[list[bytes]]) -> np.ndarray:
    return np.array(rows, np.object_)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (2, 3), (1, 1)])
def test_shapes_up_to_the_limit(shape: tuple[int, int]) -> None:
    assert check_shape("TEXT", shape, LIMITS) == shape


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ((3,), r"\[3\]: expected \[b, n\]"),
        ((), r"\[\]: expected"),
        ((1, 2, 1), r"\[1, 2, 1\]: expected"),
        ((0, 3), r"\[0, 3\]: .*at least one"),
        ((1, 0), r"\[1, 0\]: .*at least one"),
        ((1, 7), "7 texts: the limit is 6"),
        ((7, 1), "7 texts: the limit is 6"),
    ],
)
def test_wrong_shapes(shape: tuple[int, ...], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        check_shape("TEXT", shape, LIMITS)


def test_texts_are_read_row_by_row() -> None:
    assert decode_texts(tensor([[b"a", b"b"], [b"c", b""]]), LIMITS) == ["a", "b", "c", ""]


def test_bytes_arrive_whole() -> None:
    text = "\u00e9\u4e2d\U0001f600 \0x"
    assert decode_texts(tensor([[text.encode()]]), LIMITS) == [text]


def test_bytes_are_counted_not_characters() -> None:
    assert decode_texts(tensor([["\u4e2d".encode() * 6, b"ab"]]), LIMITS) == ["\u4e2d" * 6, "ab"]  # 20 bytes
    with pytest.raises(InvalidArgumentError, match="21 bytes: the limit is 20"):
        decode_texts(tensor([["\u4e2d".encode() * 7]]), LIMITS)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([[b"ok", b"a\xff"]], r"TEXT\[0, 1\] .*byte 1 is 0xff"),
        ([[b"ok"], [b"\xc3("]], r"TEXT\[1, 0\] .*byte 0 is 0xc3"),
        ([[b"\xed\xa0\x80"]], r"TEXT\[0, 0\] .*0xed"),  # a lone surrogate
        ([[b"ok", b"x"], [b"y", b"cut\xf0\x9f"]], r"TEXT\[1, 1\] .*byte 3 is 0xf0"),
    ],
)
def test_invalid_utf8_is_named_by_element(rows: list[list[bytes]], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        decode_texts(tensor(rows), LIMITS)


def read(ids: list[int], lengths: list[list[int]]):
    return read_token_input(np.array([ids], np.int32), np.array(lengths, np.int32), 100, LIMITS)


@pytest.mark.parametrize("lengths", [[[1, 2]], [[1], [2]]])
def test_token_ids_pass_unchanged(lengths: list[list[int]]) -> None:
    tokens = read([0, 99, 5], lengths)
    assert tokens.ids.tolist() == [0, 99, 5]
    assert tokens.lengths.tolist() == [1, 2]
    assert tokens.ids.dtype == tokens.lengths.dtype == np.int32


@pytest.mark.parametrize(
    ("ids", "lengths", "named"),
    [
        ([1, 2], [[2, 0]], "TOKEN_LENGTHS holds 0"),
        ([1, 2], [[3, -1]], "TOKEN_LENGTHS holds -1"),
        ([1, 2, 3], [[2]], "adds up to 2, but TOKEN_IDS holds 3"),
        ([1], [[2**31 - 1, 2**31 - 1, 3]], f"adds up to {2**32 + 1}, but TOKEN_IDS holds 1"),
        ([], [[1]], "adds up to 1, but TOKEN_IDS holds 0"),
        ([1, 100], [[2]], "TOKEN_IDS holds 100: ids lie between 0 and 99"),
        ([-1, 5], [[2]], "TOKEN_IDS holds -1"),
        ([1] * 7, [[1] * 7], "TOKEN_LENGTHS holds 7 texts: the limit is 6"),
    ],
)
def test_wrong_token_input(ids: list[int], lengths: list[list[int]], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        read(ids, lengths)
