"""The processes in which Triton's Python backend runs models, as /proc shows them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_STUB = "triton_python_backend_stub"
_REGIONS = Path("/dev/shm")  # noqa: S108 - where the system keeps them, and no file of ours
_REGION = "triton_python_backend_shm_region_"


@dataclass(frozen=True)
class Stub:
    """One process; two that happen to share an id differ in when they began.

    Attributes:
        pid: process id.
        began: clock ticks after boot.
        model: name of the model it runs.
        region: name of the memory that it shares with its server; empty if that is not known.
    """

    pid: int
    began: int
    model: str
    region: str

    def kill(self) -> None:
        """End it at once, if it is still there."""
        if _read(self.pid) == self:
            os.kill(self.pid, signal.SIGKILL)

    def remove_region(self) -> None:
        """Give back the memory that it shared, once it has ended: a server that does not end in order leaves it.

        Whoever has it mapped keeps it until then.
        """
        if self.region:
            (_REGIONS / self.region).unlink(missing_ok=True)


def live_stubs(server: int) -> frozenset[Stub]:
    """Stubs that the tritonserver with this process id started and that have not ended (stopped ones live)."""
    return _found(parent=server)


def left_stubs(server: int) -> frozenset[Stub]:
    """Stubs that live of a tritonserver that had a process group of its own, also where it has ended itself."""
    return _found(group=server)


def own_stub() -> Stub | None:
    """This process, if it is one."""
    return _read(os.getpid())


def _found(*, parent: int | None = None, group: int | None = None) -> frozenset[Stub]:
    found = (_read(int(entry.name), parent, group) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return frozenset(stub for stub in found if stub is not None)


def _read(pid: int, parent: int | None = None, group: int | None = None) -> Stub | None:
    folder = Path("/proc") / str(pid)
    try:
        # After the name in parentheses, which may hold anything: state, parent, process group, ..., and as the 20th the
        # beginning.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX" or parent not in (None, int(fields[1])) or group not in (None, int(fields[2])):
            return None
        command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return None
    if Path(command[0]).name != _STUB:
        return None
    # Its first argument is <repository>/<model>/<version>/model.py, its second the region.
    region = command[2] if command[2].startswith(_REGION) and "/" not in command[2] else ""
    return Stub(pid, int(fields[19]), Path(command[1]).parent.parent.name, region)
