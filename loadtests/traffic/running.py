"""Running a plan: locust without its pages, in processes of its own, and the server that it is pointed at."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .metrics_page import Reading, Watch
from .plan import Plan
from .samples import Sample, read_samples

_LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
_USERS = {
    "grpc": ("OnlineGrpc", "BulkGrpc"),
    "http": ("OnlineHttp", "BulkHttp"),
    "openai": ("OnlineOpenAI", "BulkOpenAI"),
}


class LoadError(RuntimeError):
    """The load generator did not come to its end; the message has what it said."""


@dataclass(frozen=True)
class Target:
    """A server under load.

    Attributes:
        kind: `grpc` and `http` (KServe), or `openai`.
        host: `host:port`, or the URL of `/v1/embeddings`.
        model: its name there.
        metrics: URL of its metrics page, if it is ours.
    """

    kind: str
    host: str
    model: str
    metrics: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in _USERS:
            raise LoadError(f"kind {self.kind!r} is not one of {', '.join(_USERS)}")


@dataclass(frozen=True)
class Run:
    """A plan that was run.

    Attributes:
        plan: the plan.
        target: where.
        samples: what came of each request.
        readings: of the server's metrics page, timed from the plan's start as far as that is known (about a second).
    """

    plan: Plan
    target: Target
    samples: list[Sample]
    readings: list[Reading] = field(default_factory=list)


def run_plan(target: Target, text: str, *, bulk_jobs: int = 2, timeout: float = 30.0, processes: int = 1) -> Run:
    """Offer a plan's load to a server and wait for the end of it.

    Args:
        target: the server.
        text: the plan as `Plan.parse` reads it.
        bulk_jobs: requests of 100 texts under way while the plan has bulk.
        timeout: of a request, in seconds.
        processes: of the load generator; more for rates that one core cannot send.

    Raises:
        LoadError: locust failed.
    """
    plan = Plan.parse(text)
    with tempfile.TemporaryDirectory() as scratch:
        samples, log = Path(scratch) / "samples.json", Path(scratch) / "log"
        command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), *_USERS[target.kind], "--headless"]
        command += ["--only-summary", "--host", target.host, "--model", target.model, "--plan", text]
        command += [
            "--bulk-jobs",
            str(bulk_jobs),
            "--request-timeout",
            str(timeout),
            "--stop-timeout",
            str(math.ceil(timeout) + 5),
        ]
        command += ["--samples", str(samples), "--exit-code-on-error", "0"]
        if processes > 1:
            command += ["--processes", str(processes)]
        watch = Watch(target.metrics) if target.metrics else None
        with log.open("wb") as file, watch or nullcontext():
            done = subprocess.run(
                command, stdout=file, stderr=file, check=False, timeout=plan.seconds + 2 * timeout + 60
            )
        if done.returncode or not samples.is_file():
            raise LoadError(f"locust ended with status {done.returncode}:\n{log.read_text()[-3000:]}")
        return Run(plan, target, read_samples(samples), watch.readings if watch else [])


@contextmanager
def embedded_server(log: IO[bytes]) -> Iterator[Target]:
    """Our own server with the default model on the CPU, on free ports; over gRPC. Its log goes to `log`."""
    from rose_ensemble.pipeline import Pipeline
    from rose_ensemble.repository import Repository
    from rose_ensemble.server_process import Endpoints, ServerProcess
    from rose_ensemble.tritonserver import find_server

    with tempfile.TemporaryDirectory() as scratch:
        store, pipeline = Repository(Path(scratch)), Pipeline()
        store.add(pipeline)
        with ServerProcess(find_server(), store.folder, [pipeline.name], Endpoints.free("127.0.0.1"), log) as server:
            server.wait_until_ready()
            yield Target("grpc", server.endpoints.grpc, pipeline.name, f"http://{server.endpoints.metrics}/metrics")
