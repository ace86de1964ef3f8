"""The forms of vectors that requests may ask for: parameter `outputs`, and the tensors that carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rose_backend.config import HeadConfig, TokenHeads
from rose_backend.core import Float32Array, Int32Array, Output, Request, Results
from rose_backend.errors import InvalidArgumentError
from rose_ensemble.int8_ranges import RANGES_FILE
from rose_ensemble.token_heads import SPARSE_FILE

FORMS = {
    "float": Output.FLOAT,
    "int8": Output.INT8,
    "binary": Output.BINARY,
    "sparse": Output.SPARSE,
    "token": Output.TOKEN,
}
_TENSORS = {Output.FLOAT: "EMBEDDING", Output.INT8: "EMBEDDING_INT8", Output.BINARY: "EMBEDDING_BINARY"}

_MARKS = {
    **_TENSORS,
    Output.TOKEN: "TOKEN_EMBEDDING",
    Output.SPARSE: "SPARSE_INDEX",
    Output.VOCABULARY: "SPARSE_INDEX",
}
"""Of each form a tensor that no other has."""

Tensors = Callable[[Results], Iterable[tuple[str, npt.NDArray[Any]]]]
"""Names and contiguous arrays of an answer."""

_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


class Wanted(NamedTuple):
    """What of a request says how its answer looks.

    Not the request itself: an answer to come that knows its request, which knows how to answer, is a circle. That is
    garbage that has to be searched for, and searching costs more than all the rest.

    Attributes:
        outputs: the forms.
        dims: how many leading elements of each vector; 0: all.
        input_ids: of all sequences back to back.
        lengths: tokens of each sequence.
    """

    outputs: Output
    dims: int
    input_ids: Int32Array
    lengths: Int32Array

    @classmethod
    def of(cls, request: Request) -> Wanted:
        """A request's own."""
        return cls(request.outputs, request.dims, request.input_ids, request.lengths)


@dataclass(frozen=True)
class OutputRules:
    """What a checkpoint's vectors can be turned into.

    Attributes:
        head: of the checkpoint.
        dim: of a whole vector.
        offered: the outputs that the model was set up with; the checkpoint may have got more since.
    """

    head: HeadConfig
    dim: int
    offered: frozenset[str] = frozenset(_MARKS.values())

    def check(self, request: Request) -> None:
        """Refuse forms that the request's vectors do not have.

        Raises:
            InvalidArgumentError: names the parameter and what is missing.
        """
        if request.outputs & Output.SPARSE and self.head.tokens.sparse is None:
            raise InvalidArgumentError(
                f"parameter 'outputs' has sparse, but this checkpoint has no {SPARSE_FILE}, and is no SPLADE"
            )
        if request.spans is not None and request.outputs & (Output.SPARSE | Output.TOKEN):
            raise InvalidArgumentError("parameter 'outputs' has sparse or token, which chunks of documents do not have")
        dims = request.dims or self.dim
        if request.outputs & Output.BINARY and dims % 8:
            raise InvalidArgumentError(
                f"parameter 'outputs' has binary, but {dims} elements do not fill bytes of 8 bits"
            )
        if request.outputs & Output.INT8:
            self._check_int8(request, dims)
        for form, tensor in _MARKS.items():
            if request.outputs & form and tensor not in self.offered:
                raise InvalidArgumentError(
                    f"parameter 'outputs' asks for {tensor}, which this model was set up without: serve the checkpoint "
                    "anew (`rose serve`, or `rose repository add`)"
                )

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


def forms_offered(head: HeadConfig) -> tuple[str, ...]:
    """The names of those that vectors of a checkpoint with this head can have."""
    offered = {
        "int8": head.tanh_codes or bool(head.ranges),
        "sparse": head.tokens.sparse is not None or head.splade is not None,
    }
    return tuple(name for name in FORMS if offered.get(name, True))


def forms_of(names: tuple[str, ...], head: HeadConfig) -> Output:
    """The forms with these names, of a checkpoint with this head."""
    forms = Output(0)
    for name in names:
        forms |= Output.VOCABULARY if name == "sparse" and head.splade is not None else FORMS[name]
    return forms


def embedding_of(shape: tuple[int, int], dims: int, results: Results) -> Iterable[tuple[str, npt.NDArray[Any]]]:
    """`tensors_of` a request that asked for float vectors alone, as most do."""
    return ((_TENSORS[Output.FLOAT], _cut(results[Output.FLOAT], dims, shape)),)


def tensors_of(
    wanted: Wanted, results: Results, shape: tuple[int, int], tokens: TokenHeads, *, lsb_first: bool
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Names and contiguous arrays of what a request asked for.

    Args:
        wanted: which forms, how many elements.
        results: the request's vectors.
        shape: the client's b and n.
        tokens: the checkpoint's heads for single tokens.
        lsb_first: whether the first of 8 signs goes to the lowest bit instead of the highest.

    Returns:
        Vectors as `[b, n, ...]`, cut to the request's dimensions. Of tokens, those of all texts back to back,
        `[1, ...]`, and how many each text has, `[b, n]` int32.
    """
    for form, name in _TENSORS.items():
        if not wanted.outputs & form:
            continue
        values, dims = results[form], wanted.dims
        if form is Output.BINARY:
            dims //= 8
            values = _REVERSED[values] if lsb_first else values
        yield name, _cut(values, dims, shape)
    if wanted.outputs & Output.TOKEN:
        vectors, lengths = results[Output.TOKEN], wanted.lengths
        if tokens.multi_vector is not None:  # of all tokens but the first
            vectors, lengths = np.delete(vectors, np.cumsum(lengths) - lengths, axis=0), lengths - 1
        yield "TOKEN_EMBEDDING", np.ascontiguousarray(vectors)[None]
        yield "TOKEN_EMBEDDING_LENGTHS", lengths.reshape(shape)
    if wanted.outputs & Output.SPARSE:
        ids, weights, counts = _sparse(wanted, results[Output.SPARSE][:, 0], tokens.weightless)
        yield from _sparse_tensors(ids, weights, counts, shape)
    if wanted.outputs & Output.VOCABULARY:
        rows = results[Output.VOCABULARY]
        sequences, found = np.nonzero(rows)  # no weight is negative
        counts = np.bincount(sequences, minlength=len(rows)).astype(np.int32)
        yield from _sparse_tensors(found.astype(np.int32), rows[sequences, found], counts, shape)


def _cut(values: npt.NDArray[Any], dims: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """`[b, n, dims]`, contiguous; 0 dims: all."""
    return (np.ascontiguousarray(values[:, :dims]) if dims else values).reshape(*shape, -1)


def _sparse_tensors(
    ids: Int32Array, weights: Float32Array, counts: Int32Array, shape: tuple[int, int]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    yield "SPARSE_INDEX", ids[None]
    yield "SPARSE_WEIGHT", weights[None]
    yield "SPARSE_LENGTHS", counts.reshape(shape)


def _sparse(
    wanted: Wanted, weights: Float32Array, weightless: tuple[int, ...]
) -> tuple[Int32Array, Float32Array, Int32Array]:
    """Token ids with a weight, in ascending order, the weights, and how many each sequence has."""
    sequences = np.repeat(np.arange(len(wanted.lengths)), wanted.lengths)
    kept = (weights > 0) & ~np.isin(wanted.input_ids, weightless)
    ids, weights, sequences = wanted.input_ids[kept], weights[kept], sequences[kept]
    order = np.lexsort((-weights, ids, sequences))  # of equal tokens of a sequence the heaviest comes first
    ids, weights, sequences = ids[order], weights[order], sequences[order]
    first = np.ones(len(ids), np.bool_)
    first[1:] = (ids[1:] != ids[:-1]) | (sequences[1:] != sequences[:-1])
    counts = np.bincount(sequences[first], minlength=len(wanted.lengths)).astype(np.int32)
    return ids[first], weights[first], counts
