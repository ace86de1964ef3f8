"""How the processes of a server share its cores."""

from __future__ import annotations

import os

from rose_backend.cores import usable_cores

_VARIABLE = "RAYON_NUM_THREADS"  # read by the tokenizers library when it first encodes several texts
_SHARE_LEFT_FREE = 8  # of so many cores engines leave one to the server, its tokenizers and clients; of fewer none


def share_cores(processes: int) -> int:
    """Give this process's tokenizer its part of the cores, unless the environment says otherwise already.

    Left alone, each takes all of them: one request of thousands of texts then holds up everything else on the machine,
    the short queries of others and the engine's own threads with it.

    Args:
        processes: that tokenize.

    Returns:
        Threads that it will use.
    """
    part = max(1, usable_cores() // max(1, processes))
    os.environ.setdefault(_VARIABLE, str(part))
    return tokenizer_threads()


def tokenizer_threads() -> int:
    """How many threads the tokenizers library uses in this process."""
    told = os.environ.get(_VARIABLE, "")
    return int(told) if told.isdecimal() and int(told) else usable_cores()


def engine_threads(engines: int) -> int | None:
    """How many threads an engine on the CPU computes with.

    With one on every core, a loop waits for the one whose core something else wants just then, and those that wait
    awake (`rose_backend/__init__.py`) are in the way of whoever brings the next request.

    Args:
        engines: that compute on this machine's cores.

    Returns:
        A part of the cores; None where the operator has set `OMP_NUM_THREADS` or `MKL_NUM_THREADS`, which torch obeys.
    """
    if os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return None
    cores = usable_cores()
    return max(1, (cores - cores // _SHARE_LEFT_FREE) // max(1, engines))
