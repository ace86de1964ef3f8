"""Running a plan: locust without its pages, in processes of its own."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from .metrics_page import Reading, Watch
from .plan import Plan
from .samples import Sample, read_samples
from .texts import DOCUMENT_WORDS

_LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
_USERS = {
    "grpc": ("OnlineGrpc", "BulkGrpc"),
    "http": ("OnlineHttp", "BulkHttp"),
    "openai": ("OnlineOpenAI", "BulkOpenAI"),
}
_LOOK_SECONDS = 0.2
_SCORERS = {"grpc": "ScoreGrpc", "http": "ScoreHttp", "rerank": "ScoreRerank"}


class LoadError(RuntimeError):
    """The load generator did not come to its end; the message has what it said."""


@dataclass(frozen=True)
class ScoreTarget:
    """What scores documents.

    Attributes:
        kind: `grpc` and `http` (KServe, a reranker), or `rerank`.
        host: `host:port`, or the URL of `/v1/rerank`.
        model: its name there.
        document_words: of every document.
    """

    kind: str
    host: str
    model: str
    document_words: int = DOCUMENT_WORDS

    def __post_init__(self) -> None:
        if self.kind not in _SCORERS:
            raise LoadError(f"kind of scoring {self.kind!r} is not one of {', '.join(_SCORERS)}")


@dataclass(frozen=True)
class Target:
    """A server under load.

    Attributes:
        kind: `grpc` and `http` (KServe), or `openai`.
        host: `host:port`, or the URL of `/v1/embeddings`.
        model: its name there.
        metrics: URL of its metrics page, if it is ours.
        score: where scoring requests go, if it gets any.
    """

    kind: str
    host: str
    model: str
    metrics: str | None = None
    score: ScoreTarget | None = None

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
        LoadError: locust failed, the server ended, or the plan has scoring requests and the target nothing for them.
    """
    plan = Plan.parse(text)
    users = [*_USERS[target.kind]]
    scoring = []
    if any(phase.score for phase in plan.phases):
        if target.score is None:
            raise LoadError(f"plan {text!r} has scoring requests, but nothing that scores is named")
        users.append(_SCORERS[target.score.kind])
        scoring = ["--score-host", target.score.host, "--score-model", target.score.model]
        scoring += ["--document-words", str(target.score.document_words)]
    with tempfile.TemporaryDirectory() as scratch:
        samples, log = Path(scratch) / "samples.json", Path(scratch) / "log"
        command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), *users, "--headless", *scoring]
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
            status = _wait(
                subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True),
                watch,
                plan.seconds + 2 * timeout + 60,
            )
        if status or not samples.is_file():
            raise LoadError(f"locust ended with status {status}:\n{log.read_text()[-3000:]}")
        return Run(plan, target, read_samples(samples), watch.readings if watch else [])


def _wait(locust: subprocess.Popen[bytes], watch: Watch | None, timeout: float) -> int:
    """Its status, unless the server ends first: what comes after that says nothing, and there can be a lot of it."""
    deadline = time.monotonic() + timeout
    with locust:
        while (status := locust.poll()) is None:
            lost = watch is not None and watch.lost
            if lost or time.monotonic() > deadline:
                os.killpg(locust.pid, signal.SIGKILL)  # its workers too
                why = "the server ended" if lost else f"locust did not end in {timeout:.0f} s"
                raise LoadError(f"{why}; the load was stopped")
            time.sleep(_LOOK_SECONDS)
    return status
