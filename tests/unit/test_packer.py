"""First come, first served packing: every expected batch is written out by hand."""

from __future__ import annotations

from collections import deque

from rose_backend.core import Request
from rose_backend.packer import TokenPacker
from tests.unit.builders import request_with_lengths

Taken = list[tuple[int, int, int]]


def pack(packer: TokenPacker, *requests: Request) -> list[Taken]:
    """Every batch until the queue is empty, as (index of the request, first sequence, sequences)."""
    queue, batches = deque(requests), []
    while (batch := packer.take(queue)) is not None:
        batches.append([(requests.index(s.request), s.first, s.count) for s in batch.segments])
    assert not queue
    return batches


def test_an_empty_queue_gives_no_batch() -> None:
    assert TokenPacker(8, 8).take(deque()) is None


def test_a_batch_is_filled_exactly_to_the_token_budget() -> None:
    requests = request_with_lengths(3), request_with_lengths(5), request_with_lengths(1)
    assert pack(TokenPacker(8, 8), *requests) == [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1)]]


def test_one_token_over_the_budget_waits() -> None:
    assert pack(TokenPacker(8, 8), request_with_lengths(4), request_with_lengths(5)) == [[(0, 0, 1)], [(1, 0, 1)]]


def test_max_sequences_ends_a_batch() -> None:
    requests = request_with_lengths(1, 1), request_with_lengths(1, 1), request_with_lengths(1)
    assert pack(TokenPacker(100, 3), *requests) == [[(0, 0, 2), (1, 0, 1)], [(1, 1, 1), (2, 0, 1)]]


def test_the_first_that_does_not_fit_ends_the_batch_though_a_later_one_would() -> None:
    requests = request_with_lengths(6), request_with_lengths(5), request_with_lengths(2)
    assert pack(TokenPacker(8, 8), *requests) == [[(0, 0, 1)], [(1, 0, 1), (2, 0, 1)]]


def test_a_large_request_spreads_over_batches_and_sequences_are_never_cut() -> None:
    # 4 + 4 | 3 + 5 | 2 and then the next request's 6
    requests = request_with_lengths(4, 4, 3, 5, 2), request_with_lengths(6)
    assert pack(TokenPacker(8, 8), *requests) == [[(0, 0, 2)], [(0, 2, 2)], [(0, 4, 1), (1, 0, 1)]]


def test_a_large_request_fills_what_an_earlier_one_left() -> None:
    requests = request_with_lengths(5), request_with_lengths(2, 2, 2, 2, 2)
    assert pack(TokenPacker(8, 8), *requests) == [[(0, 0, 1), (1, 0, 1)], [(1, 1, 4)]]


def test_a_sequence_as_long_as_the_budget_goes_alone() -> None:
    assert pack(TokenPacker(8, 8), request_with_lengths(8, 8)) == [[(0, 0, 1)], [(0, 1, 1)]]


def test_a_sequence_longer_than_the_budget_has_a_batch_to_itself() -> None:
    requests = request_with_lengths(2, 9), request_with_lengths(9), request_with_lengths(3)
    expected = [[(0, 0, 1)], [(0, 1, 1)], [(1, 0, 1)], [(2, 0, 1)]]
    assert pack(TokenPacker(8, 8), *requests) == expected


def test_tokens_left_counts_down() -> None:
    request = request_with_lengths(4, 4, 3)
    packer, queue = TokenPacker(8, 8), deque([request])
    assert request.tokens_left == 11
    packer.take(queue)
    assert (request.num_packed, request.tokens_left) == (2, 3)
    packer.take(queue)
    assert (request.num_packed, request.tokens_left) == (3, 0)


def test_an_answered_request_is_dropped() -> None:
    first, second = request_with_lengths(5, 5), request_with_lengths(3)
    packer, queue = TokenPacker(8, 8), deque([first, second])
    packer.take(queue)
    first.answered = True
    batch = packer.take(queue)
    assert batch is not None
    assert [(s.request, s.first, s.count) for s in batch.segments] == [(second, 0, 1)]
    assert not queue


def test_only_answered_requests_give_no_batch() -> None:
    request = request_with_lengths(5)
    request.answered = True
    queue = deque([request])
    assert TokenPacker(8, 8).take(queue) is None
    assert not queue
