"""What a server's `/metrics` page says."""

from __future__ import annotations

import time
import urllib.request

_FLUSHED_SECONDS = 1.1  # after which the page has all that was counted


def sums(address: str) -> dict[str, float]:
    """By name, ROSE's metrics, summed over their labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith("rose_")]
    found: dict[str, float] = {}
    for name, value in lines:
        key = name.split("{")[0]
        found[key] = found.get(key, 0.0) + float(value)
    return found


def settled_sums(address: str) -> dict[str, float]:
    """The same, with all that happened before the call."""
    time.sleep(_FLUSHED_SECONDS)
    return sums(address)
