"""How the threads of an engine's process share its Python interpreter."""

from __future__ import annotations

import gc
import sys

# How long one thread may keep the others from running Python, by default 5 ms. Reading a message of requests takes one
# or two: interrupted every 0.1 ms it took twice as long, and others waited for it (measured: 0.77 of the requests/s).
_SWITCH_SECONDS = 0.001


def take_turns() -> None:
    """Let threads wait for one another for a millisecond at most."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def keep_loaded() -> None:
    """What was loaded stays: later collections would walk it again and again, holding everybody up for tens of ms."""
    gc.collect()
    gc.freeze()
