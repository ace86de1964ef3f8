"""Locust users: sources of online queries that do not wait for answers, and bulk jobs that do.

Queries leave at random moments (Poisson), whatever became of the earlier ones: an open loop, in which a slow server
shows. Each source sends an equal share of the plan's rate; together they are again a Poisson process, however many
there are and on however many workers. A bulk job sends its next request once it has the answer to the last, as
re-indexing does.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import gevent
from locust import User, constant, task
from locust.env import Environment

from . import samples
from .endpoints import AnswerError, Endpoint, OpenAI, RefusedError, TritonGrpc, TritonHttp
from .plan import Plan
from .texts import PASSAGE, QUERY, draw_texts

NUM_SOURCES = 4
BULK_TEXTS = 100
_NAP = 0.25  # seconds between looks at whether the test has ended
_POOL = 64  # texts or requests drawn beforehand, so that drawing takes no time from sending
_CONNECTIONS = 512


class Clock:
    """Seconds since the test started in this process, and the plan they belong to."""

    plan = Plan(())
    started = math.inf

    @classmethod
    def start(cls, plan: Plan) -> None:
        """The test starts now."""
        cls.plan, cls.started = plan, time.perf_counter()

    @classmethod
    def now(cls) -> float:
        """Seconds since then."""
        return time.perf_counter() - cls.started


class Recorder:
    """Samples of this process, until somebody takes them.

    Attributes:
        under_way: requests sent and not yet answered.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self._samples: list[samples.Sample] = []

    def add(self, sample: samples.Sample) -> None:
        """Keep one."""
        self._samples.append(sample)

    def is_done(self) -> bool:
        """Whether the plan is over, and all that it had sent is answered."""
        return Clock.now() > Clock.plan.seconds + _NAP and self.under_way == 0

    def take(self) -> list[samples.Sample]:
        """Those there are now; each is handed out once."""
        taken, self._samples = self._samples, []
        return taken


recorder = Recorder()


class TrafficUser(User):
    """What sources and jobs share."""

    abstract = True
    wait_time = constant(0)
    open_endpoint: Callable[[Environment], Endpoint]
    traffic: str
    _count = 0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        type(self)._count += 1
        worker = getattr(environment.runner, "worker_index", 0)
        # The same texts at the same moments whatever the protocol, so that a comparison compares servers.
        self.rng = random.Random(f"{self.traffic} {worker} {type(self)._count}")
        self.endpoint = type(self).open_endpoint(environment)

    def send(self, texts: list[str], due: float, phase: int) -> None:
        """Send a request that is due, wait for its answer, keep what came of it."""
        tokens, outcome, error = 0, samples.OK, None
        recorder.under_way += 1
        try:
            tokens = self.endpoint.embed(texts)
        except AnswerError as cause:
            outcome, error = samples.REFUSED if isinstance(cause, RefusedError) else samples.FAILED, cause
        finally:
            recorder.under_way -= 1
        seconds = Clock.now() - due
        recorder.add(samples.Sample(self.traffic, phase, due, seconds, len(texts), tokens, outcome))
        self.environment.events.request.fire(
            request_type=type(self).__name__,
            name=self.traffic,
            response_time=seconds * 1e3,
            response_length=tokens,
            exception=error,
            context={},
        )

    def on_stop(self) -> None:
        """The endpoint closes with its user."""
        self.endpoint.close()


class OnlineUser(TrafficUser):
    """A source of single short texts, at random moments."""

    abstract = True
    traffic = samples.ONLINE
    fixed_count = NUM_SOURCES

    def on_start(self) -> None:
        """Draw texts, and when the first one leaves."""
        self._texts = draw_texts(self.rng, _POOL, QUERY)
        self._due = Clock.plan.next_arrival(0.0, self.rng.expovariate(1.0), 1 / NUM_SOURCES)

    @task
    def arrive(self) -> None:
        """Send what is due, each in a greenlet of its own."""
        if self._due is None or self._due > Clock.now() + _NAP:
            gevent.sleep(_NAP)
            return
        gevent.sleep(max(0.0, self._due - Clock.now()))
        phase = Clock.plan.index_at(self._due)
        assert phase is not None
        gevent.spawn(self.send, [self.rng.choice(self._texts)], self._due, phase)
        self._due = Clock.plan.next_arrival(self._due, self.rng.expovariate(1.0), 1 / NUM_SOURCES)


class BulkUser(TrafficUser):
    """A re-indexing job: requests of 100 passages, one after another, while the plan has bulk jobs."""

    abstract = True
    traffic = samples.BULK
    fixed_count = 2

    def on_start(self) -> None:
        """Draw a few requests."""
        self._requests = [draw_texts(self.rng, BULK_TEXTS, PASSAGE) for _ in range(_POOL // 8)]

    @task
    def index(self) -> None:
        """One request."""
        now = Clock.now()
        phase = Clock.plan.index_at(now)
        if phase is None or not Clock.plan.phases[phase].bulk:
            gevent.sleep(_NAP)
            return
        self.send(self.rng.choice(self._requests), now, phase)


def _grpc(environment: Environment) -> Endpoint:
    options = environment.parsed_options
    return TritonGrpc(environment.host, options.model, options.request_timeout)


def _http(environment: Environment) -> Endpoint:
    options = environment.parsed_options
    return TritonHttp(environment.host, options.model, options.request_timeout, _CONNECTIONS)


def _openai(environment: Environment) -> Endpoint:
    options = environment.parsed_options
    return OpenAI(environment.host, options.model, options.request_timeout, _CONNECTIONS)


class OnlineGrpc(OnlineUser):
    """Queries over Triton's gRPC."""

    open_endpoint = _grpc


class BulkGrpc(BulkUser):
    """Re-indexing over Triton's gRPC."""

    open_endpoint = _grpc


class OnlineHttp(OnlineUser):
    """Queries over Triton's HTTP."""

    open_endpoint = _http


class BulkHttp(BulkUser):
    """Re-indexing over Triton's HTTP."""

    open_endpoint = _http


class OnlineOpenAI(OnlineUser):
    """Queries over `/v1/embeddings`."""

    open_endpoint = _openai


class BulkOpenAI(BulkUser):
    """Re-indexing over `/v1/embeddings`."""

    open_endpoint = _openai
