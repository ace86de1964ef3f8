"""The few objects everything passes: a Request comes in, Segments of it ride in Batches, a reply goes out."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from rose_backend.errors import RoseError

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


class Lane(str, Enum):
    """Where a request queues. Each lane is first come, first served; lanes take turns."""

    ONLINE = "online"
    BULK = "bulk"
    __hash__ = str.__hash__  # an enumeration's own is Python code, and every request looks its lane up often


class Output(IntFlag):
    """A form in which vectors may be wanted, several of one request."""

    FLOAT = 1
    """`[num_rows, dim]` float32."""
    INT8 = 2
    """`[num_rows, dim]` int8."""
    BINARY = 4
    """`[num_rows, ceil(dim / 8)]` uint8: the signs of 8 elements to a byte, the first in the highest bit."""
    SPARSE = 8
    """`[num_tokens, 1]` float32: each token's weight."""
    TOKEN = 16
    """`[num_tokens, width]` float32: each token's vector."""
    VOCABULARY = 32
    """`[num_rows, vocab_size]` float32: the weight of every token of the vocabulary."""
    __hash__ = int.__hash__  # as for `Lane`


FLOAT = Output.FLOAT
OF_TOKENS = frozenset({Output.SPARSE, Output.TOKEN})
"""Forms that have a row a token, all sequences back to back."""
_ANY_OF_TOKENS = Output.SPARSE | Output.TOKEN
Results = Mapping[Output, npt.NDArray[Any]]
"""Vectors by form; as many rows in each, but for those of tokens."""
Reply = Callable[["Results | RoseError"], None]


class Outcome(str, Enum):
    """How a request ended."""

    SERVED = "served"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    __hash__ = str.__hash__


class Field(IntFlag):
    """A number that each sequence of a request may carry besides its tokens; 0 where it carries none.

    A value is the field's bit in the flags word of a WORK tensor (`rose_ensemble/work.py`).
    """

    POOL_FROM = 1
    """How many tokens at its start are not pooled: those of a prompt."""
    TYPE_FROM = 2
    """Where its second text begins, whose tokens are of type 1; 0: it has none."""


Fields = Mapping[Field, Int32Array]
"""`[num_sequences]` int32 each."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Parts of sequences that have a vector each, in place of one a sequence: the chunks of documents.

    Attributes:
        counts: `[num_sequences]` int32, parts of each sequence, at least 1.
        starts: `[num_rows]` int32, the first token of each part, counted from its sequence's first.
        stops: `[num_rows]` int32, the token after its last; equal to the start: no tokens, whose vector is pooled as 0.
        offsets: `[num_sequences + 1]`: where the parts of each sequence begin; computed here.
    """

    counts: Int32Array
    starts: Int32Array
    stops: Int32Array
    offsets: Int64Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", np.concatenate(([0], np.cumsum(self.counts, dtype=np.int64))))


@dataclass(eq=False, slots=True)
class Request:
    """One client request: some sequences, answered together and exactly once.

    Attributes:
        input_ids: `[total_tokens]` int32, all sequences back to back; owned by this request.
        lengths: `[num_sequences]` int32, tokens of each sequence, each at least 1.
        reply: called once, from a thread of the service, with the vectors, a row a sequence or a span, in the forms
            wanted and perhaps others, or with an error.
        normalize: whether the vectors are scaled to unit length.
        lane: where it queues; None: by its size.
        arrived: `time.monotonic()` seconds.
        deadline: `time.monotonic()` seconds after which nobody waits for the answer; None: never.
        is_cancelled: whether the sender has gone; asked before the request is packed. None: it cannot be told.
        dims: how many leading elements of each vector will be used; 0: all. The rest is left as it is, and is for the
            receiver to cut off.
        rescale: whether what `dims` leaves is scaled, where vectors are; otherwise the whole vector is, before the cut.
        fields: what its sequences carry besides their tokens.
        outputs: the forms in which its vectors are wanted.
        spans: the parts of its sequences that have vectors; None: each sequence has one.
        tag: the sender's own, by which it knows the request in reports; not looked at here.
        probe: whether it is a health check, beside which bulk work is still alone.
    """

    input_ids: Int32Array
    lengths: Int32Array
    reply: Reply
    normalize: bool = True
    lane: Lane | None = None
    arrived: float = field(default_factory=time.monotonic)
    deadline: float | None = None
    is_cancelled: Callable[[], bool] | None = None
    dims: int = 0
    rescale: bool = True
    fields: Fields = field(default_factory=dict)
    outputs: Output = FLOAT
    spans: Spans | None = None
    tag: object = None
    probe: bool = False

    num_packed: int = field(default=0, init=False)
    """Sequences already in a batch; advanced by the packer (engine thread)."""
    packed_at: float | None = field(default=None, init=False)
    """`time.monotonic()` seconds when the first of them was packed."""
    asked_at: float = field(default=float("-inf"), init=False)
    """`time.monotonic()` seconds when `is_cancelled` was last asked."""
    num_done: int = field(default=0, init=False)
    """Sequences whose vectors have come back; advanced by the completer."""
    results: dict[Output, npt.NDArray[Any]] = field(default_factory=dict, init=False)
    """Of a request that spreads over several batches: filled by the completer as they return."""
    answered: bool = field(default=False, init=False)
    """Set by the service when `reply` was called; later parts of the request are then dropped."""
    _offsets: Int64Array | None = field(default=None, init=False)

    @property
    def offsets(self) -> Int64Array:
        """`[num_sequences + 1]`: where each sequence starts in `input_ids`."""
        if self._offsets is None:  # most requests never need them
            self._offsets = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))
        return self._offsets

    @property
    def num_sequences(self) -> int:
        """Sequences in the whole request."""
        return len(self.lengths)

    @property
    def num_rows(self) -> int:
        """Vectors of the whole request."""
        return self.num_sequences if self.spans is None else len(self.spans.starts)

    @property
    def num_tokens(self) -> int:
        """Tokens in the whole request."""
        return len(self.input_ids)

    @property
    def scaling(self) -> int:
        """0: vectors stay as they are; 1: they get unit length; -d: their first d elements get unit length."""
        if not self.dims or not self.rescale:
            return self.normalize
        return -self.dims if self.normalize else 0

    @property
    def tokens_left(self) -> int:
        """Tokens not yet in any batch."""
        if not self.num_packed:
            return len(self.input_ids)
        return int(self.offsets[-1] - self.offsets[self.num_packed])


@dataclass(slots=True)  # not frozen: that makes making one three times as long
class Segment:
    """Sequences `first` up to `first + count` of one request, as part of one batch."""

    request: Request
    first: int
    count: int

    @property
    def input_ids(self) -> Int32Array:
        """`[tokens]` int32: a view into the request."""
        request = self.request
        if self.count == len(request.lengths):
            return request.input_ids
        return request.input_ids[request.offsets[self.first] : request.offsets[self.first + self.count]]

    @property
    def lengths(self) -> Int32Array:
        """`[count]` int32: a view into the request."""
        lengths = self.request.lengths
        return lengths if self.count == len(lengths) else lengths[self.first : self.first + self.count]

    @property
    def rows(self) -> slice:
        """The rows of its request that are its."""
        spans, stop = self.request.spans, self.first + self.count
        if spans is None:
            return slice(self.first, stop)
        return slice(int(spans.offsets[self.first]), int(spans.offsets[stop]))

    @property
    def tokens(self) -> slice:
        """The tokens of its request that are its."""
        offsets = self.request.offsets
        return slice(int(offsets[self.first]), int(offsets[self.first + self.count]))

    def carried(self, name: Field) -> Int32Array:
        """`[count]` int32: a view into the request, or zeros."""
        values = self.request.fields.get(name)
        return np.zeros(self.count, np.int32) if values is None else values[self.first : self.first + self.count]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine step runs: ragged, no padding.

    Sequences stand in ascending order of length, so that equal lengths are neighbours; `order` leads back.

    Attributes:
        segments: whose sequences these are, first come first.
        input_ids: `[total_tokens]` int32.
        cu_seqlens: `[num_sequences + 1]` int32, cumulative lengths, starting at 0.
        normalize: `[num_sequences]` int32, each its request's `scaling`.
        order: `[num_rows]` int64; row i of the result belongs to the `order[i]`-th row of the segments.
        fields: those that some sequence carries, for all of them.
        outputs: every form in which some request wants its vectors.
        spans: `[3, num_rows]` int32, if some request has spans: for every row, in the order of the segments, its first
            token in the batch, the token after its last, and its request's `scaling`. None: a row a sequence.
    """

    segments: tuple[Segment, ...]
    input_ids: Int32Array
    cu_seqlens: Int32Array
    normalize: Int32Array
    order: Int64Array
    fields: Fields = field(default_factory=dict)
    outputs: Output = FLOAT
    spans: Int32Array | None = None

    @property
    def keeps_tokens(self) -> bool:
        """Whether token vectors are wanted after the last layer, for spans or by themselves."""
        return self.spans is not None or (self.outputs is not FLOAT and bool(self.outputs & _ANY_OF_TOKENS))

    @property
    def token_order(self) -> Int64Array:
        """`[num_tokens]`: token i of the batch is the `token_order[i]`-th of the segments."""
        lengths = np.concatenate([segment.lengths for segment in self.segments])
        sequences = np.argsort(lengths, kind="stable")  # `order` may be that of spans
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        order: Int64Array = np.repeat(starts[sequences] - self.cu_seqlens[:-1], lengths[sequences])
        return order + np.arange(self.num_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.input_ids)

    @property
    def num_sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.cu_seqlens) - 1

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence, which stands last."""
        return int(self.cu_seqlens[-1] - self.cu_seqlens[-2])

    @classmethod
    def of(cls, segments: tuple[Segment, ...]) -> Batch:
        """Lay the segments' sequences out by length; at least one sequence is required."""
        lone = segments[0]
        if len(segments) == 1 and lone.count == 1 and lone.request.spans is None:  # half of a quiet server's batches
            return cls._of_one(lone)
        lengths = np.concatenate([segment.lengths for segment in segments])
        flat = np.concatenate([segment.input_ids for segment in segments])
        order = np.argsort(lengths, kind="stable")
        cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
        ascending = lengths[order]
        np.cumsum(ascending, out=cu_seqlens[1:])
        if (lengths[1:] < lengths[:-1]).any():
            # Token t of batch row i comes from flat[starts[order[i]] + t]: one gather, no loop over tokens.
            starts = np.cumsum(lengths, dtype=np.int64) - lengths
            shift = starts[order] - cu_seqlens[:-1]
            flat = flat[np.repeat(shift, ascending) + np.arange(len(flat))]
        counts = [segment.count for segment in segments]
        requests = [segment.request for segment in segments]
        normalize = np.repeat(np.array([request.scaling for request in requests], np.int32), counts)[order]
        fields: Fields = {}
        if any([request.fields for request in requests]):  # noqa: C419 (a list is quicker, and most have none)
            names = {name for segment in segments for name in segment.request.fields}
            fields = {name: np.concatenate([segment.carried(name) for segment in segments])[order] for name in names}
        batch = cls(segments, flat, cu_seqlens, normalize, order, fields)
        if any([request.outputs is not FLOAT or request.spans for request in requests]):  # noqa: C419
            outputs = functools.reduce(operator.or_, (request.outputs for request in requests))
            batch = replace(batch, outputs=outputs)
            if any(request.spans for request in requests):
                spans = _spans(batch)
                batch = replace(batch, spans=spans, order=np.arange(spans.shape[1]))
        return batch

    @classmethod
    def _of_one(cls, segment: Segment) -> Batch:
        ids = segment.input_ids
        cu_seqlens = np.array((0, len(ids)), np.int32)
        normalize = np.array((segment.request.scaling,), np.int32)
        fields = segment.request.fields
        if fields:
            fields = {name: segment.carried(name) for name in fields}
        return cls((segment,), ids, cu_seqlens, normalize, np.zeros(1, np.int64), fields, segment.request.outputs)


def _spans(batch: Batch) -> Int32Array:
    """`Batch.spans` of a batch whose `order` is still that of sequences."""
    begins = np.empty(batch.num_sequences, np.int32)  # of each sequence of the segments, in the batch
    begins[batch.order] = batch.cu_seqlens[:-1]
    parts, first = [], 0
    for segment in batch.segments:
        own, spans = begins[first : first + segment.count], segment.request.spans
        first += segment.count
        if spans is None:
            starts, stops = own + segment.carried(Field.POOL_FROM), own + segment.lengths
            starts = np.minimum(starts, stops)
        else:
            shifts = np.repeat(own, spans.counts[segment.first : segment.first + segment.count])
            starts, stops = spans.starts[segment.rows] + shifts, spans.stops[segment.rows] + shifts
        parts.append(np.stack([starts, stops, np.full_like(starts, segment.request.scaling)]))
    return np.concatenate(parts, axis=1)
