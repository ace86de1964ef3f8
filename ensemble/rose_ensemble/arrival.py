"""When a request came to the server, carried from `tokenize` to `rose` as one int32.

Microseconds of the machine's monotonic clock, which all its processes share, modulo 2**31: enough for ages of up to
35 minutes, and no request is that old.
"""

from __future__ import annotations

import time

_MODULUS = 2**31


def arrival_stamp() -> int:
    """Now."""
    return time.monotonic_ns() // 1000 % _MODULUS


def arrived_at(stamp: int) -> float:
    """`time.monotonic()` seconds of a stamp."""
    age = (time.monotonic_ns() // 1000 - stamp) % _MODULUS
    return time.monotonic() - age / 1e6
