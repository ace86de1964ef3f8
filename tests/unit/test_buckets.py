"""Padded shapes: the rule's values by hand, and that every batch fits the smallest bucket of its kind."""

from __future__ import annotations

import pytest

from rose_backend.buckets import Bucket, covering_buckets


@pytest.mark.parametrize(
    ("num_tokens", "padded"),
    [
        (1, 16),
        (16, 16),
        (17, 32),
        (32, 32),
        (33, 64),
        (64, 64),
        (65, 128),
        (128, 128),
        (129, 192),
        (1000, 1024),
        (1024, 1024),
        (1025, 1280),
        (1280, 1280),
        (1281, 1536),
        (16384, 16384),
    ],
)
def test_tokens(num_tokens: int, padded: int) -> None:
    assert Bucket.fitting(num_tokens, 1, 1).num_tokens == padded


@pytest.mark.parametrize(("count", "padded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (512, 512), (513, 1024)])
def test_sequences_go_up_to_powers_of_two(count: int, padded: int) -> None:
    assert Bucket.fitting(2000, count, 2).num_sequences == padded


@pytest.mark.parametrize(("longest", "padded"), [(1, 32), (32, 32), (33, 64), (64, 64), (65, 128), (8192, 8192)])
def test_lengths_go_up_to_powers_of_two_from_32(longest: int, padded: int) -> None:
    assert Bucket.fitting(8192, 1, longest).max_seqlen == padded


def test_a_bucket_holds_its_batch_and_fits_itself() -> None:
    for num_tokens in range(1, 3000, 7):
        for num_sequences in (1, num_tokens // 2 + 1, num_tokens):
            longest = num_tokens - num_sequences + 1
            bucket = Bucket.fitting(num_tokens, num_sequences, longest)
            assert bucket.num_tokens >= num_tokens
            assert bucket.num_sequences >= num_sequences
            assert bucket.max_seqlen >= longest
            assert Bucket.fitting(bucket.num_tokens, bucket.num_sequences, bucket.max_seqlen) == bucket


def test_padding_shrinks_as_a_share() -> None:
    assert all(Bucket.fitting(n, 1, 1).num_tokens <= 1.25 * n for n in range(256, 20_000))


def test_a_few_buckets_cover_most_batches() -> None:
    covers = covering_buckets(4096, 8192)
    assert covers[0] == Bucket(64, 4, 64)
    assert covers[-1] == Bucket(4096, 256, 512)
    assert [cover.num_tokens for cover in covers] == [64, 128, 256, 512, 1024, 2048, 4096]
    for count, length in ((1, 20), (16, 26), (64, 26), (3, 500), (8, 512), (100, 30)):
        batch = Bucket.fitting(count * length, count, length)
        tightest = min(cover for cover in covers if cover.holds(batch))
        assert tightest.num_tokens <= max(64, 2.1 * count * length)
    assert covering_buckets(128, 100) == [Bucket(64, 4, 64), Bucket(128, 8, 128)]
