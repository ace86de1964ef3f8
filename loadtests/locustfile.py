"""Locust's way in, for load by hand and from several machines; `loadtest.py` uses it too.

    locust -f loadtests/locustfile.py OnlineGrpc BulkGrpc --host localhost:8001 --plan 'day:360x200'
    locust -f loadtests/locustfile.py OnlineHttp BulkHttp --host localhost:8000 --plan '30x50,30x100+bulk' --headless
    locust -f loadtests/locustfile.py OnlineOpenAI --host http://localhost:8080/v1/embeddings --model bge --plan 60x20
    locust -f loadtests/locustfile.py ScoreGrpc --host localhost:8001 --score-model rerank --plan 60x0+score2
    locust -f loadtests/locustfile.py OnlineGrpc BulkGrpc ScoreRerank --host localhost:8001 --plan day:360x200+score2 \
        --score-host http://localhost:8080/v1/rerank --score-model embed

Several processes: start one with `--master --expect-workers N` and N with `--worker --master-host HOST`. Name the user
classes you want: online and bulk of one protocol, and one that scores. The plan says when what is sent
(`traffic/plan.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc.experimental.gevent
from locust import LoadTestShape, events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from traffic.plan import Plan
from traffic.samples import Sample, write_samples
from traffic.texts import DOCUMENT_WORDS
from traffic.users import (
    NUM_SOURCES,
    BulkGrpc,
    BulkHttp,
    BulkOpenAI,
    Clock,
    OnlineGrpc,
    OnlineHttp,
    OnlineOpenAI,
    ScoreGrpc,
    ScoreHttp,
    ScoreRerank,
    ScoreUser,
    recorder,
)

__all__ = [
    "BulkGrpc",
    "BulkHttp",
    "BulkOpenAI",
    "OnlineGrpc",
    "OnlineHttp",
    "OnlineOpenAI",
    "PlannedTraffic",
    "ScoreGrpc",
    "ScoreHttp",
    "ScoreRerank",
]

grpc.experimental.gevent.init_gevent()  # before the first channel; locust has patched the rest on import

_SAMPLES, _DONE = "rose_samples", "rose_done"
_LATE = 10.0  # seconds beyond a request's timeout after which what is still under way is given up
_from_workers: list[Sample] = []
_done_workers: set[str] = set()


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--model", default="embed", help="Name of the model.")
    parser.add_argument("--plan", default="30x5,30x5+bulk", help="e.g. 10x50,10x50+bulk,day:360x200: seconds x rate.")
    parser.add_argument(
        "--bulk-jobs", type=int, default=2, help="Requests of 100 texts under way, where the plan has bulk."
    )
    parser.add_argument("--score-model", default="rerank", help="Name of the model that scores.")
    parser.add_argument("--score-host", default="", help="Where it is: host:port, or the URL of /v1/rerank.")
    parser.add_argument("--document-words", type=int, default=DOCUMENT_WORDS, help="Of each document to be scored.")
    parser.add_argument("--request-timeout", type=float, default=30.0, help="Seconds.")
    parser.add_argument("--samples", default="", help="File for what came of every request, as JSON.")


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    Clock.start(Plan.parse(environment.parsed_options.plan))


@events.report_to_master.add_listener
def _hand_over(client_id: str, data: dict[str, Any]) -> None:  # noqa: ARG001 (locust's names)
    data[_DONE] = recorder.is_done()  # asked first: an answer that comes in between is in the next report
    data[_SAMPLES] = recorder.take()


@events.worker_report.add_listener
def _receive(client_id: str, data: dict[str, Any]) -> None:
    _from_workers.extend(Sample(*row) for row in data[_SAMPLES])
    if data[_DONE]:
        _done_workers.add(client_id)


@events.quit.add_listener
def _write(**_: Any) -> None:
    if _Run.samples is not None:
        write_samples(_Run.samples, sorted([*_from_workers, *recorder.take()], key=lambda sample: sample.due))


class _Run:
    """Where this process leaves the samples of all of them, if it does."""

    samples: Path | None = None


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    for job in (BulkGrpc, BulkHttp, BulkOpenAI):
        job.fixed_count = environment.parsed_options.bulk_jobs
    ScoreUser.document_words = environment.parsed_options.document_words
    if environment.parsed_options.samples and not isinstance(environment.runner, WorkerRunner):
        _Run.samples = Path(environment.parsed_options.samples)


class PlannedTraffic(LoadTestShape):
    """Everybody there is, until the plan is over: how much they send is for the plan to say, not for their number.

    The end waits for the last answers, since the slowest requests are among them, and for the workers' last reports.
    """

    def tick(self) -> tuple[int, float] | None:
        """See `LoadTestShape`."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        beyond = self.get_run_time() - Plan.parse(options.plan).seconds
        if beyond > options.request_timeout + _LATE or (beyond > 0 and self._is_done()):
            return None
        classes = self.runner.environment.user_classes
        return sum(user.fixed_count for user in classes), 10.0 * NUM_SOURCES

    def _is_done(self) -> bool:
        if isinstance(self.runner, MasterRunner):
            return {worker.id for worker in self.runner.clients.running} <= _done_workers
        return recorder.is_done()
