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

    def ticks(self) -> int:
        """Time of cores that it has used, in clock ticks; 0 when it has ended."""
        fields = _fields(self.pid)
        return 0 if fields is None or int(fields[19]) != self.began else int(fields[11]) + int(fields[12])

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
    fields = _fields(pid)
    if fields is None or parent not in (None, int(fields[1])) or group not in (None, int(fields[2])):
        return None
    try:
        command = (Path("/proc") / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return None
    if Path(command[0]).name != _STUB:
        return None
    # Its first argument is <repository>/<model>/<version>/model.py, its second the region.
    region = command[2] if command[2].startswith(_REGION) and "/" not in command[2] else ""
    return Stub(pid, int(fields[19]), Path(command[1]).parent.parent.name, region)


def _fields(pid: int) -> list[str] | None:
    """What /proc/<pid>/stat has after the name: state, parent, process group, ...; None when the process has ended."""
    try:
        # In parentheses is any program's name, cut after 15 bytes, whatever character that divides.
        text = (Path("/proc") / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
