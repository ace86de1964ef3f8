"""`rose serve` as a process beside a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import processes_mentioning, rose_command, running
from tests.support.prometheus import Page
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

    def send_signal(self, model: str, number: signal.Signals) -> None:
        """Send a signal to the newest process that runs the model, while it says nothing to Triton.

        A process that is killed while it answers or hands on its counts may hold a lock in the memory that it shares
        with Triton, which then ends (`boost::interprocess::lock_exception`), or waits for ever.
        """
        handed_on = self._handed_on(model)
        wait_until(lambda: self._handed_on(model) > handed_on, "it hands on its counts, those of probes")
        time.sleep(0.1)
        os.kill(self.stub(model), number)

    def _handed_on(self, model: str) -> int:
        counted = "rose_batches_total" if model.endswith("rose") else "rose_tokenize_requests_total"
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            return Page(answer.read().decode()).read(counted, model=model)

    def regions(self) -> list[str]:
        """Names of the memory that its models' processes share with it."""
        commands = (Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in processes_mentioning(self.folder))
        return [command[2] for command in commands if Path(command[0]).name == "triton_python_backend_stub"]

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
        found = Serving(process, at["HTTP"], at["gRPC"], at["metrics"], folder, at.get("gateway", ""))
        regions = [Path("/dev/shm") / region for region in found.regions()]
        try:
            yield found
        except BaseException:
            sys.stderr.write(found.log[-5000:])
            raise
    wait_until(lambda: processes_mentioning(folder) == [], "every process is gone")
    assert len(regions) >= 2
    assert [region for region in regions if region.exists()] == []
