"""What `tokenize` hands to `rose`: one flat int32 tensor, WORK, for a whole request.

    b, n, arrival stamp (-1: now), LENGTHS (b * n of them), INPUT_IDS (as many as the lengths add up to)

Every tensor of a request costs both processes tens of microseconds, whatever its size; thousands of requests a second
feel three or four of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rose_backend.core import Int32Array
from rose_backend.errors import InvalidArgumentError

_HEADER = 3
NO_STAMP = -1


@dataclass(frozen=True, slots=True)
class Work:
    """One request's sequences.

    Attributes:
        shape: the client's b and n.
        stamp: see `arrival_stamp`; `NO_STAMP` where nobody noted it.
        lengths: `[b * n]` int32.
        input_ids: `[total_tokens]` int32.
    """

    shape: tuple[int, int]
    stamp: int
    lengths: Int32Array
    input_ids: Int32Array

    def pack(self) -> Int32Array:
        """`[1, 3 + b * n + total_tokens]` int32."""
        header = np.array((*self.shape, self.stamp), np.int32)
        return np.concatenate((header, self.lengths, self.input_ids))[None]

    @classmethod
    def unpack(cls, tensor: Int32Array) -> Work:
        """Read a copy, since the tensor's memory is the server's.

        Raises:
            InvalidArgumentError: it does not hold what its first numbers say.
        """
        flat = tensor.ravel().copy()
        if flat.size < _HEADER:
            raise InvalidArgumentError(f"WORK holds {flat.size} values: expected b, n, a stamp, lengths and ids")
        b, n, stamp = flat[:_HEADER].tolist()
        first = _HEADER + b * n
        if min(b, n) < 1 or first > flat.size:
            raise InvalidArgumentError(f"WORK says {b} x {n} sequences, but holds {flat.size - _HEADER} more values")
        return cls((b, n), stamp, flat[_HEADER:first], flat[first:])
