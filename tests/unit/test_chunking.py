"""Splitting a call's texts: what one request carries."""

from __future__ import annotations

import numpy as np
import pytest

from rose_client import ChunkLimits
from rose_client.chunking import Chunk, estimate_tokens, split, split_documents


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 2), ("a", 3), ("four", 3), ("fiver", 4), ("é" * 4, 4), ("茶" * 4, 5)]
)
def test_a_token_for_every_four_bytes_begun_and_two_special_ones(text: str, tokens: int) -> None:
    assert estimate_tokens(text.encode()) == tokens


def _sizes(texts: list[bytes], **limits: int) -> list[tuple[int, int, int]]:
    return [(chunk.first, len(chunk.texts), chunk.tokens) for chunk in split(texts, ChunkLimits(**limits))]


def test_a_chunk_is_full_at_its_number_of_texts() -> None:
    assert _sizes([b"tea"] * 5, max_texts=2) == [(0, 2, 6), (2, 2, 6), (4, 1, 3)]
    assert _sizes([b"tea"] * 4, max_texts=4) == [(0, 4, 12)]


def test_a_chunk_is_full_at_its_number_of_tokens() -> None:
    # 3, 3, 5, 3 and 12 tokens
    texts = [b"tea", b"pot", b"black tea", b"pot", b"x" * 40]
    assert _sizes(texts, max_tokens=11) == [(0, 3, 11), (3, 1, 3), (4, 1, 12)]
    assert _sizes(texts, max_tokens=10) == [(0, 2, 6), (2, 2, 8), (4, 1, 12)]


def test_a_text_over_the_limit_travels_alone() -> None:
    assert _sizes([b"x" * 80, b"tea", b"x" * 80], max_tokens=5) == [(0, 1, 22), (1, 1, 3), (2, 1, 22)]


def test_chunks_hold_every_text_in_order() -> None:
    texts = [str(number).encode() * (number % 7) for number in range(100)]
    chunks = split(texts, ChunkLimits(max_tokens=30, max_texts=6))
    assert [text for chunk in chunks for text in chunk.texts] == texts
    assert all(chunk.texts[0] is texts[chunk.first] for chunk in chunks)


def test_the_defaults_make_a_request_of_about_two_engine_batches() -> None:
    assert _sizes([b"tea"] * 257) == [(0, 256, 768), (256, 1, 3)]
    assert _sizes([b"x" * 4088] * 17) == [(0, 16, 16384), (16, 1, 1024)]
    assert split([b"tea"], ChunkLimits()) == [Chunk(0, [b"tea"], 3)]


def test_chunks_of_one_call_know_that_there_are_others() -> None:
    assert [chunk.is_part for chunk in split([b"tea"] * 2, ChunkLimits())] == [False]
    assert [chunk.is_part for chunk in split([b"tea"] * 3, ChunkLimits(max_texts=2))] == [True, True]
    assert [chunk.is_part for chunk in split_documents([b"tea"] * 2, [1, 1], ChunkLimits(max_texts=1))] == [True, True]


def test_a_long_call_begins_and_ends_with_smaller_chunks() -> None:
    """200 texts of 4 tokens: 8 in a quarter of a chunk of 128. 800 tokens are not long, 1,600 are."""
    assert {chunk.tokens for chunk in split([b"x" * 8] * 200, ChunkLimits(max_tokens=128))[:-1]} == {128}
    tokens = [chunk.tokens for chunk in split([b"x" * 8] * 400, ChunkLimits(max_tokens=128))]
    assert tokens[:3] == [32, 64, 128]
    # 1,600 - 32 - 64 = 1,504 are left, and after four more 992: an eighth of them is 124.
    assert tokens[2:8] == [128, 128, 128, 128, 124, 108]
    assert tokens[-3:] == [32, 32, tokens[-1]]
    assert tokens[-1] <= 32
    assert sum(tokens) == 1600


@pytest.mark.parametrize("name", ["max_tokens", "max_texts"])
def test_limits_leave_room(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        ChunkLimits(**{name: 0})


def test_token_ids_are_counted_as_they_are() -> None:
    ids = [np.arange(5, dtype=np.int32)] * 3
    assert [(chunk.first, chunk.tokens) for chunk in split(ids, ChunkLimits(max_tokens=10))] == [(0, 10), (2, 5)]


@pytest.mark.parametrize(
    ("counts", "limits", "expected"),
    [
        ([2, 1, 3], ChunkLimits(), [(0, (2, 1, 3))]),
        ([2, 1, 3], ChunkLimits(max_texts=3), [(0, (2, 1)), (3, (3,))]),
        ([5, 1, 1], ChunkLimits(max_texts=2), [(0, (5,)), (5, (1, 1))]),
        ([1, 5, 1], ChunkLimits(max_texts=2), [(0, (1,)), (1, (5,)), (6, (1,))]),
        ([2, 2, 2], ChunkLimits(max_tokens=12), [(0, (2, 2)), (4, (2,))]),
        ([4], ChunkLimits(max_texts=1), [(0, (4,))]),
    ],
)
def test_documents_stay_whole(
    counts: list[int], limits: ChunkLimits, expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    texts = [f"{number:04}".encode() for number in range(sum(counts))]  # 3 tokens each
    chunks = split_documents(texts, counts, limits)
    assert [(chunk.first, chunk.counts) for chunk in chunks] == expected
    assert [text for chunk in chunks for text in chunk.texts] == texts
    assert all(len(chunk.texts) == sum(chunk.counts) for chunk in chunks)
    assert [chunk.tokens for chunk in chunks] == [3 * len(chunk.texts) for chunk in chunks]
