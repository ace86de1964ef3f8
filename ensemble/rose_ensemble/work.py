"""What `tokenize` hands to `rose`: one flat int32 tensor, WORK, for a whole request.

    b, n, arrival stamp (-1: now), flags, LENGTHS (b * n of them), each field (as many), INPUT_IDS (the sum of lengths)

`flags` says which fields (`rose_backend.core.Field`) are there; they stand in the order of their bits, lowest first.
Documents in chunks (flag 0x10000) are fewer than b * n: their number follows the flags, and after the fields come the
chunks of each, then where each chunk starts in its document, and where each ends (b * n and b * n).
Every tensor of a request costs both processes tens of microseconds, whatever its size; thousands of requests a second
feel three or four of them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rose_backend.core import Field, Fields, Int32Array, Spans
from rose_backend.errors import InvalidArgumentError

_HEADER = 4
_SPANS = 0x10000
_KNOWN = sum(Field) | _SPANS
NO_STAMP = -1
_NO_FIELDS: Fields = MappingProxyType({})


class Work(NamedTuple):
    """One request's sequences.

    Attributes:
        shape: the client's b and n.
        stamp: see `arrival_stamp`; `NO_STAMP` where nobody noted it.
        lengths: `[num_sequences]` int32: b * n of them, but for documents.
        input_ids: `[total_tokens]` int32.
        fields: `[num_sequences]` int32 each: what the sequences carry besides their tokens.
        spans: of documents in chunks, b * n together.
    """

    shape: tuple[int, int]
    stamp: int
    lengths: Int32Array
    input_ids: Int32Array
    fields: Fields = _NO_FIELDS
    spans: Spans | None = None

    def pack(self) -> Int32Array:
        """`[1, 4 + (1 + number of fields) * b * n + total_tokens]` int32; more for documents."""
        if self.spans is not None:
            return self._pack_documents(self.spans)
        flags, fields = 0, tuple[Int32Array, ...]()
        if self.fields:
            flags, fields = sum(self.fields), tuple(self.fields[name] for name in sorted(self.fields))
        header = np.array((*self.shape, self.stamp, flags), np.int32)
        packed: Int32Array = np.concatenate((header, self.lengths, *fields, self.input_ids))[None]
        return packed

    def _pack_documents(self, spans: Spans) -> Int32Array:
        names = sorted(self.fields)
        header = np.array((*self.shape, self.stamp, sum(names) | _SPANS, len(self.lengths)), np.int32)
        parts = (self.lengths, *(self.fields[name] for name in names), spans.counts, spans.starts, spans.stops)
        packed: Int32Array = np.concatenate((header, *parts, self.input_ids), dtype=np.int32)[None]
        return packed

    @classmethod
    def unpack(cls, tensor: Int32Array) -> Work:
        """Read a copy, since the tensor's memory is the server's.

        Raises:
            InvalidArgumentError: it does not hold what its first numbers say.
        """
        flat = tensor.flatten()
        if flat.size < _HEADER:
            raise InvalidArgumentError(f"WORK holds {flat.size} values: expected b, n, a stamp, flags, lengths and ids")
        b, n, stamp, flags = flat[:_HEADER].tolist()
        if flags & _SPANS and not flags & ~_KNOWN:
            return cls._unpack_documents(flat)
        first = _HEADER + b * n
        if min(b, n) < 1 or first > flat.size:
            raise InvalidArgumentError(f"WORK says {b} x {n} sequences, but holds {flat.size - _HEADER} more values")
        if not flags:
            return cls((b, n), stamp, flat[_HEADER:first], flat[first:])
        fields, ids = _split(flat[first:], flags, b * n)
        return cls((b, n), stamp, flat[_HEADER:first], ids, fields)

    @classmethod
    def _unpack_documents(cls, flat: Int32Array) -> Work:
        b, n, stamp, flags, count = (
            int(value) for value in (*flat[:_HEADER], flat[_HEADER] if flat.size > _HEADER else 0)
        )
        first = _HEADER + 1 + count
        if min(b, n, count) < 1 or first + count + 2 * b * n > flat.size:
            raise InvalidArgumentError(f"WORK says {count} documents of {b} x {n} chunks, but holds {flat.size} values")
        fields, rest = _split(flat[first:], flags & ~_SPANS, count)
        stops = np.cumsum((count, b * n, b * n))
        if stops[-1] > rest.size:
            raise InvalidArgumentError(f"WORK says {count} documents of {b} x {n} chunks, but holds {flat.size} values")
        counts, starts, ends, ids = np.split(rest, stops)
        return cls((b, n), stamp, flat[_HEADER + 1 : first], ids, fields, Spans(counts, starts, ends))


def _split(rest: Int32Array, flags: int, count: int) -> tuple[Fields, Int32Array]:
    """The fields that `flags` names, off the front of what follows the lengths, and what follows them."""
    if flags & ~_KNOWN:
        raise InvalidArgumentError(f"WORK has flags {flags:#x}: known are {_KNOWN:#x}")
    names = [name for name in Field if flags & name]
    if len(names) * count > rest.size:
        raise InvalidArgumentError(f"WORK says {len(names)} fields of {count}, but holds {rest.size} more values")
    fields = {name: rest[index * count : (index + 1) * count] for index, name in enumerate(names)}
    return fields, rest[len(names) * count :]
