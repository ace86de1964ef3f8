"""Keep every core from going to sleep, without taking it from anybody who has work for it.

On a virtual machine an idle core is handed back to the host, and whoever is woken on it waits until it returns. With
this beside a measurement, what is left is the work itself.

    python loadtests/kept_awake.py
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STARTED = "awake"


@contextmanager
def kept_awake() -> Iterator[None]:
    """Meanwhile every core that this process may use is awake."""
    with subprocess.Popen([sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != _STARTED:
                raise RuntimeError("the cores could not be kept awake")
            yield
        finally:
            process.kill()


def main() -> None:
    """A thread a core, of the class that runs only where nothing else would; until killed."""
    libc = ctypes.CDLL(None)
    lock = ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))  # never given up: the others look at it for ever, outside Python's lock
    cores = os.sched_getaffinity(0)
    placed = threading.Barrier(len(cores) + 1)

    def look(core: int) -> None:
        thread = threading.get_native_id()
        os.sched_setaffinity(thread, {core})
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        placed.wait()
        libc.pthread_spin_lock(ctypes.byref(lock))

    for core in cores:
        threading.Thread(target=look, args=(core,), daemon=True).start()
    placed.wait()
    print(_STARTED, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
