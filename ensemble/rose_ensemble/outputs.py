"""The forms of vectors that requests may ask for: parameter `outputs`, and the tensors that carry them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rose_backend.config import HeadConfig
from rose_backend.core import Output, Request, Results
from rose_backend.errors import InvalidArgumentError
from rose_ensemble.int8_ranges import RANGES_FILE

FORMS = {"float": Output.FLOAT, "int8": Output.INT8, "binary": Output.BINARY}
TENSORS = {Output.FLOAT: "EMBEDDING", Output.INT8: "EMBEDDING_INT8", Output.BINARY: "EMBEDDING_BINARY"}

_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


@dataclass(frozen=True)
class OutputRules:
    """What a checkpoint's vectors can be turned into.

    Attributes:
        head: of the checkpoint.
        dim: of a whole vector.
    """

    head: HeadConfig
    dim: int

    def check(self, request: Request) -> None:
        """Refuse forms that the request's vectors do not have.

        Raises:
            InvalidArgumentError: names the parameter and what is missing.
        """
        dims = request.dims or self.dim
        if request.outputs & Output.BINARY and dims % 8:
            raise InvalidArgumentError(
                f"parameter 'outputs' has binary, but {dims} elements do not fill bytes of 8 bits"
            )
        if request.outputs & Output.INT8:
            self._check_int8(request, dims)

    def _check_int8(self, request: Request, dims: int) -> None:
        if self.head.tanh_codes:
            if request.normalize:
                raise InvalidArgumentError(
                    "parameter 'normalize' is true, but this checkpoint's int8 codes are made of vectors as they are"
                )
            return
        known = {ranges.scaling for ranges in self.head.ranges}
        if not known:
            raise InvalidArgumentError(
                f"parameter 'outputs' has int8, but this checkpoint has no {RANGES_FILE}; `rose calibrate` makes one"
            )
        if request.scaling not in known:
            scaled = "scaled to unit length" if request.normalize else "not scaled"
            raise InvalidArgumentError(
                f"parameter 'outputs' has int8, but {RANGES_FILE} has no ranges for {dims} elements that are {scaled}"
            )


def forms_of(names: tuple[str, ...]) -> Output:
    """The forms with these names."""
    forms = Output(0)
    for name in names:
        forms |= FORMS[name]
    return forms


def tensors_of(request: Request, results: Results, *, lsb_first: bool) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Names and contiguous `[num_rows, ...]` arrays of what a request asked for, cut to its dimensions.

    Args:
        request: which forms, how many elements.
        results: its vectors.
        lsb_first: whether the first of 8 signs goes to the lowest bit instead of the highest.
    """
    for form, name in TENSORS.items():
        if not request.outputs & form:
            continue
        values, dims = results[form], request.dims
        if form is Output.BINARY:
            dims //= 8
            values = _REVERSED[values] if lsb_first else values
        yield name, np.ascontiguousarray(values[:, :dims]) if dims else values
