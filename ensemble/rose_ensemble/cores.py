"""How the tokenizing processes of a server share its cores."""

from __future__ import annotations

import os

_VARIABLE = "RAYON_NUM_THREADS"  # read by the tokenizers library when it first encodes several texts


def share_cores(processes: int) -> int:
    """Give this process's tokenizer its part of the cores, unless the environment says otherwise already.

    Left alone, each takes all of them: one request of thousands of texts then holds up everything else on the machine,
    the short queries of others and the engine's own threads with it.

    Args:
        processes: that tokenize.

    Returns:
        Threads that it will use.
    """
    part = max(1, len(os.sched_getaffinity(0)) // max(1, processes))
    return int(os.environ.setdefault(_VARIABLE, str(part)))
