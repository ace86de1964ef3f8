"""A process whose parent dies ends, though its own threads would go on for ever."""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import wait_until

_CHILD = """
import threading
from rose_ensemble.orphan import end_with_server
end_with_server()
threading.Thread(target=threading.Event().wait).start()  # not a daemon: it would keep the process
print("up", flush=True)
threading.Event().wait()
"""
_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "up\\n"
print(child.pid, flush=True)
"""


def _is_running(pid: int) -> bool:
    """Not there any more, or a zombie that nobody has collected: either is ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 (vanishes while it is looked at)
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_ends_when_its_parent_is_gone() -> None:
    parent = subprocess.run([sys.executable, "-c", _PARENT, _CHILD], capture_output=True, text=True, check=True)
    child = int(parent.stdout)
    wait_until(lambda: not _is_running(child), "the orphan has ended", seconds=30)
