"""Pooling and normalisation in plain torch, against values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from rose_backend.config import PoolingMode
from rose_backend.kernels.torch_ops import TorchOps

_HIDDEN = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 12.0], [6.0, 8.0], [0.0, 0.0], [3.0, 4.0]])
_CU_SEQLENS = torch.tensor([0, 1, 3, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (PoolingMode.MEAN, [[1.0, 2.0], [4.0, 8.0], [3.0, 4.0]]),
        (PoolingMode.CLS, [[1.0, 2.0], [3.0, 4.0], [6.0, 8.0]]),
        (PoolingMode.LAST, [[1.0, 2.0], [5.0, 12.0], [3.0, 4.0]]),
    ],
)
def test_pool(mode: PoolingMode, expected: list[list[float]]) -> None:
    pooled = TorchOps().pool(_HIDDEN, _CU_SEQLENS, torch.zeros(3, dtype=torch.int32), mode)
    assert pooled.tolist() == expected


def test_only_the_wanted_rows_are_normalized() -> None:
    pooled = TorchOps().pool(_HIDDEN, _CU_SEQLENS, torch.tensor([0, 1, 1]), PoolingMode.LAST)
    torch.testing.assert_close(pooled, torch.tensor([[1.0, 2.0], [5 / 13, 12 / 13], [0.6, 0.8]]))


def test_only_the_wanted_columns_count() -> None:
    pooled = TorchOps().pool(_HIDDEN, _CU_SEQLENS, torch.tensor([-1, -2, 0]), PoolingMode.LAST)
    torch.testing.assert_close(pooled, torch.tensor([[1.0, 2.0], [5 / 13, 12 / 13], [3.0, 4.0]]))


@pytest.mark.parametrize(
    ("mode", "whole", "late"),
    [
        (PoolingMode.CLS, [[1.0, 2.0], [3.0, 4.0], [6.0, 8.0]], [[1.0, 2.0], [5.0, 12.0], [3.0, 4.0]]),
        (PoolingMode.MAX, [[1.0, 2.0], [5.0, 12.0], [6.0, 8.0]], [[0.0, 0.0], [5.0, 12.0], [3.0, 4.0]]),
        (PoolingMode.MEAN, [[1.0, 2.0], [4.0, 8.0], [3.0, 4.0]], [[0.0, 0.0], [5.0, 12.0], [3.0, 4.0]]),
        (
            PoolingMode.WEIGHTED_MEAN,
            [[1.0, 2.0], [13 / 3, 28 / 3], [2.5, 10 / 3]],
            [[0.0, 0.0], [5.0, 12.0], [3.0, 4.0]],
        ),
        (PoolingMode.LAST, [[1.0, 2.0], [5.0, 12.0], [3.0, 4.0]], [[0.0, 0.0], [5.0, 12.0], [3.0, 4.0]]),
    ],
)
def test_pool_modes(mode: PoolingMode, whole: list[list[float]], late: list[list[float]]) -> None:
    pool_from = torch.tensor([1, 1, 2], dtype=torch.int32)
    for skipped, expected in ((None, whole), (pool_from, late)):
        rows = TorchOps().pool_modes(_HIDDEN, _CU_SEQLENS, 3, (mode,), skipped)
        torch.testing.assert_close(rows, torch.tensor(expected))


def test_vectors_of_several_modes_stand_one_after_another() -> None:
    rows = TorchOps().pool_modes(_HIDDEN, _CU_SEQLENS, 3, (PoolingMode.MEAN_SQRT, PoolingMode.CLS), None)
    root = 2**0.5
    torch.testing.assert_close(rows[1], torch.tensor([8 / root, 16 / root, 3.0, 4.0]))


def test_a_zero_vector_stays_zero() -> None:
    pooled = TorchOps().pool(torch.zeros(2, 3), torch.tensor([0, 2]), torch.tensor([1]), PoolingMode.MEAN)
    assert pooled.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_averaged_in_float32(dtype: torch.dtype) -> None:
    """256 + 1 is 256 in bfloat16, so a sum there would lose every small term."""
    hidden = torch.tensor([[256.0]] + [[1.0]] * 255, dtype=dtype)
    pooled = TorchOps().pool(hidden, torch.tensor([0, 256]), torch.tensor([0]), PoolingMode.MEAN)
    assert pooled.dtype is torch.float32
    assert pooled.item() == 511 / 256


def test_what_lies_beyond_the_sequences_is_padding() -> None:
    hidden = torch.cat([_HIDDEN, torch.full((2, 2), float("nan"))])
    cu_seqlens = torch.tensor([0, 1, 3, 6, 8], dtype=torch.int32)
    pooled = TorchOps().pool(hidden, cu_seqlens, torch.zeros(3, dtype=torch.int32), PoolingMode.MEAN)
    assert pooled.tolist() == [[1.0, 2.0], [4.0, 8.0], [3.0, 4.0]]


def test_positions_start_anew_in_every_sequence() -> None:
    positions = TorchOps().positions(_CU_SEQLENS, 6, 512)
    assert positions.tolist() == [0, 0, 1, 0, 1, 2]


def test_positions_stay_below_the_limit() -> None:
    assert TorchOps().positions(torch.tensor([0, 5], dtype=torch.int32), 5, 3).tolist() == [0, 1, 2, 2, 2]
