"""The one tensor between the two steps."""

from __future__ import annotations

import numpy as np
import pytest

from rose_backend.errors import InvalidArgumentError
from rose_ensemble.work import NO_STAMP, Work


def test_layout_by_hand() -> None:
    work = Work((2, 1), 77, np.array([3, 2], np.int32), np.array([101, 7, 102, 101, 102], np.int32))
    packed = work.pack()
    assert packed.dtype == np.int32
    assert packed.tolist() == [[2, 1, 77, 3, 2, 101, 7, 102, 101, 102]]


def test_there_and_back() -> None:
    work = Work((1, 3), NO_STAMP, np.array([1, 2, 1], np.int32), np.array([5, 6, 7, 8], np.int32))
    again = Work.unpack(work.pack())
    assert (again.shape, again.stamp) == ((1, 3), NO_STAMP)
    assert again.lengths.tolist() == [1, 2, 1]
    assert again.input_ids.tolist() == [5, 6, 7, 8]


def test_what_is_read_is_a_copy() -> None:
    tensor = np.array([[1, 1, 0, 2, 8, 9]], np.int32)
    work = Work.unpack(tensor)
    tensor[:] = 0
    assert work.input_ids.tolist() == [8, 9]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ([], "WORK holds 0 values"),
        ([1, 1], "WORK holds 2 values"),
        ([0, 0, 0], "0 x 0 sequences"),
        ([1, 0, 0], "1 x 0 sequences"),
        ([-1, -1, 0, 5], "-1 x -1 sequences"),
        ([1, 2, 0, 5], "1 x 2 sequences, but holds 1 more values"),
        ([2**31 - 1, 2**31 - 1, 0, 5], "2147483647 x 2147483647 sequences"),
    ],
)
def test_what_means_nothing_is_refused(values: list[int], part: str) -> None:
    with pytest.raises(InvalidArgumentError, match=part):
        Work.unpack(np.array([values], np.int32))
