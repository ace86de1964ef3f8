"""What may queue: each limit at its edge and one beyond."""

from __future__ import annotations

import numpy as np
import pytest

from rose_backend.admission import Limits
from rose_backend.core import Field, Request
from rose_backend.errors import InvalidArgumentError, Status
from tests.unit.builders import Answers, request_of

LIMITS = Limits(vocab_size=100, max_length=4)


def request(ids: list[int], lengths: list[int]) -> Request:
    return Request(np.array(ids, np.int32), np.array(lengths, np.int32), Answers())


@pytest.mark.parametrize(
    "sequences", [[[0]], [[99]], [[1, 2, 3, 4]], [[1], [2, 3], [4, 5, 6, 7]], [[0, 9, 99, 1]] * 70]
)
def test_everything_up_to_the_limits_is_admitted(sequences: list[list[int]]) -> None:
    LIMITS.check(request_of(sequences))


@pytest.mark.parametrize(
    ("ids", "lengths", "named"),
    [
        ([], [], "LENGTHS is empty"),
        ([1], [1, 0], "LENGTHS holds 0"),
        ([1], [2, -1], "LENGTHS holds -1"),
        ([1, 2, 3, 4, 5], [5], r"LENGTHS holds 5: the limit is 4"),
        ([1, 2, 3], [1, 1], r"adds up to 2, but INPUT_IDS holds 3"),
        ([1, 2, 3], [2, 2], r"adds up to 4, but INPUT_IDS holds 3"),
        ([1, -1], [2], "INPUT_IDS holds -1: .* between 0 and 99"),
        ([1, 100], [2], "INPUT_IDS holds 100: .* between 0 and 99"),
        ([*[1] * 79, -1], [4] * 20, "INPUT_IDS holds -1: .* between 0 and 99"),
        ([*[1] * 79, 100], [4] * 20, "INPUT_IDS holds 100: .* between 0 and 99"),
        ([1] * 81, [*[4] * 19, 5], r"LENGTHS holds 5: the limit is 4"),
        ([1] * 320, [*[4] * 79, 0, 4], r"LENGTHS holds 0"),
    ],
)
def test_refusals_name_tensor_value_and_limit(ids: list[int], lengths: list[int], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named) as refusal:
        LIMITS.check(request(ids, lengths))
    assert refusal.value.status is Status.INVALID_ARG


def test_lengths_whose_sum_overflows_int32_are_refused() -> None:
    most = 2**31 - 1
    with pytest.raises(InvalidArgumentError, match=f"adds up to {3 * most}"):
        Limits(100, most).check(request([1], [most, most, most]))


@pytest.mark.parametrize(
    ("known", "value", "named"),
    [
        ((), 0, "POOL_FROM is not used"),
        ((Field.POOL_FROM,), -1, "POOL_FROM holds -1: it lies between 0 and 4"),
        ((Field.POOL_FROM,), 5, "POOL_FROM holds 5"),
        ((Field.POOL_FROM,), 2**31 - 1, "POOL_FROM holds 2147483647"),
    ],
)
def test_fields_are_checked(known: tuple[Field, ...], value: int, named: str) -> None:
    carrying = request_of([[1, 2], [3]])
    carrying.fields = {Field.POOL_FROM: np.array([0, value], np.int32)}
    with pytest.raises(InvalidArgumentError, match=named):
        Limits(100, 4, known).check(carrying)
    if known:
        carrying.fields = {Field.POOL_FROM: np.array([0, 4], np.int32)}
        Limits(100, 4, known).check(carrying)
