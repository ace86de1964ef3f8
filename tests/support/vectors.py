"""Comparing vectors by their largest absolute difference: two wrong poolings pass a cosine of 0.99."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-5


def largest_difference(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    return float(np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)).max())


def assert_close(actual: npt.ArrayLike, expected: npt.ArrayLike, tolerance: float = TOLERANCE) -> None:
    """Equal shapes, finite values, no element further off than the tolerance."""
    assert np.shape(actual) == np.shape(expected)
    assert np.isfinite(actual).all()
    difference = largest_difference(actual, expected)
    assert difference <= tolerance, f"largest difference {difference:.3g} > {tolerance:.3g}"


def assert_starts_with(vector: npt.ArrayLike, head: Sequence[float]) -> None:
    """A vector's first elements are the given ones, which were printed to five decimals."""
    assert_close(np.asarray(vector)[: len(head)], head)


def cosine(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> float:
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
