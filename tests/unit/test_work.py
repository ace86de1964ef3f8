"""The one tensor between the two steps."""

from __future__ import annotations

import numpy as np
import pytest

from rose_backend.core import Field
from rose_backend.errors import InvalidArgumentError
from rose_ensemble.work import NO_STAMP, Work


def test_layout_by_hand() -> None:
    work = Work((2, 1), 77, np.array([3, 2], np.int32), np.array([101, 7, 102, 101, 102], np.int32))
    packed = work.pack()
    assert packed.dtype == np.int32
    assert packed.tolist() == [[2, 1, 77, 0, 3, 2, 101, 7, 102, 101, 102]]


def test_there_and_back() -> None:
    work = Work((1, 3), NO_STAMP, np.array([1, 2, 1], np.int32), np.array([5, 6, 7, 8], np.int32))
    again = Work.unpack(work.pack())
    assert (again.shape, again.stamp) == ((1, 3), NO_STAMP)
    assert again.lengths.tolist() == [1, 2, 1]
    assert again.input_ids.tolist() == [5, 6, 7, 8]


def test_fields_stand_between_lengths_and_ids() -> None:
    fields = {Field.POOL_FROM: np.array([2, 1], np.int32)}
    work = Work((1, 2), 9, np.array([3, 2], np.int32), np.array([101, 7, 102, 101, 102], np.int32), fields)
    packed = work.pack()
    assert packed.tolist() == [[1, 2, 9, 1, 3, 2, 2, 1, 101, 7, 102, 101, 102]]
    again = Work.unpack(packed)
    assert {name: values.tolist() for name, values in again.fields.items()} == {Field.POOL_FROM: [2, 1]}
    assert (again.lengths.tolist(), again.input_ids.tolist()) == ([3, 2], [101, 7, 102, 101, 102])


def test_what_is_read_is_a_copy() -> None:
    tensor = np.array([[1, 1, 0, 0, 2, 8, 9]], np.int32)
    work = Work.unpack(tensor)
    tensor[:] = 0
    assert work.input_ids.tolist() == [8, 9]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ([], "WORK holds 0 values"),
        ([1, 1, 0], "WORK holds 3 values"),
        ([0, 0, 0, 0], "0 x 0 sequences"),
        ([1, 0, 0, 0], "1 x 0 sequences"),
        ([-1, -1, 0, 0, 5], "-1 x -1 sequences"),
        ([1, 2, 0, 0, 5], "1 x 2 sequences, but holds 1 more values"),
        ([2**31 - 1, 2**31 - 1, 0, 0, 5], "2147483647 x 2147483647 sequences"),
        ([1, 1, 0, 4, 1, 5], "flags 0x4: known are 0x10003"),
        ([1, 1, 0, -1, 1, 5], "flags -0x1"),
        ([1, 2, 0, 1, 1, 1, 5], "1 fields of 2, but holds 1 more values"),
    ],
)
def test_what_means_nothing_is_refused(values: list[int], part: str) -> None:
    with pytest.raises(InvalidArgumentError, match=part):
        Work.unpack(np.array([values], np.int32))
