"""`rose serve` as a process beside a test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import processes_mentioning, rose_command, running
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Serving:
    """A server that has said that it is ready.

    Attributes:
        process: `rose serve`.
        http: `host:port` as printed, and so on.
        folder: its repository is in `repository`, its standard error in `log`.
        gateway: empty without one.
    """

    process: subprocess.Popen[str]
    http: str
    grpc: str
    metrics: str
    folder: Path
    gateway: str = ""

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stub(self, model: str) -> int:
        """Process id of the newest process that runs the model."""
        return max(processes_mentioning(self.folder / "repository" / model / "1" / "model.py"), key=_began)

    def tritonserver(self) -> list[int]:
        return processes_mentioning(f"--model-repository={self.folder / 'repository'}")


def _began(pid: int) -> int:
    """Clock ticks after boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Serving]:
    """Serve on free ports, wait for the addresses; afterwards stop, and see that no process is left."""
    ports = [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics", "gateway")]
    command = rose_command("serve", f"--repository={folder / 'repository'}", *ports, *options)
    with running(command, folder / "log") as process:
        assert process.stdout is not None
        at: dict[str, str] = {}
        for line in process.stdout:
            found = re.match(r"\s+(gRPC|HTTP|metrics|gateway)\s+(?:http://)?([^\s/]+)", line)
            if found:
                at[found[1]] = found[2]
            if line.startswith("try:"):
                break
        assert {"gRPC", "HTTP", "metrics"} <= set(at), (folder / "log").read_text(errors="replace")[-3000:]
        yield Serving(process, at["HTTP"], at["gRPC"], at["metrics"], folder, at.get("gateway", ""))
    wait_until(lambda: processes_mentioning(folder) == [], "every process is gone")
