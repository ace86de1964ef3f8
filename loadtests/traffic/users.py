"""Locust users: sources of online queries and of scoring requests that do not wait for answers, and bulk jobs that do.

Queries and scoring requests leave at random moments (Poisson), whatever became of the earlier ones: an open loop, in
which a slow server shows. Each source sends an equal share of the plan's rate; together they are again a Poisson
process, however many there are and on however many workers. A bulk job sends its next request once it has the answer to
the last, as re-indexing does.
"""

from __future__ import annotations

import math
import random
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import gevent
from locust import User, constant, task
from locust.env import Environment

from . import samples
from .endpoints import AnswerError, Embeds, Endpoint, JsonRoute, RefusedError, Scores, TritonGrpc, TritonHttp
from .plan import Plan
from .texts import PASSAGE, QUERY, Lengths, draw_texts

NUM_SOURCES = 4
BULK_TEXTS = 100
SCORED_DOCUMENTS = (5, 25, 50)
"""Of a scoring request, each as often as the others."""
_NAP = 0.25  # seconds between looks at whether the test has ended
_RETRY_SECONDS = 1.0  # of a bulk job, after a failure: a server that is not there would get thousands of requests
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
    open_endpoint: Callable[[Environment], Any]
    traffic: str
    endpoint: Endpoint
    _count = 0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        type(self)._count += 1
        worker = getattr(environment.runner, "worker_index", 0)
        # The same texts at the same moments whatever the protocol, so that a comparison compares servers.
        self.rng = random.Random(f"{self.traffic} {worker} {type(self)._count}")
        self.endpoint = type(self).open_endpoint(environment)

    def send(self, ask: Callable[[], int], num_texts: int, due: float, phase: int) -> bool:
        """Send a request that is due, wait for its answer, keep what came of it; whether it was answered."""
        tokens, outcome, error = 0, samples.OK, None
        recorder.under_way += 1
        try:
            tokens = ask()
        except AnswerError as cause:
            outcome, error = samples.REFUSED if isinstance(cause, RefusedError) else samples.FAILED, cause
        finally:
            recorder.under_way -= 1
        seconds = Clock.now() - due
        recorder.add(samples.Sample(self.traffic, phase, due, seconds, num_texts, tokens, outcome))
        self.environment.events.request.fire(
            request_type=type(self).__name__,
            name=self.traffic,
            response_time=seconds * 1e3,
            response_length=tokens,
            exception=error,
            context={},
        )
        return error is None

    def on_stop(self) -> None:
        """The endpoint closes with its user."""
        self.endpoint.close()


class OpenLoopUser(TrafficUser):
    """A source of requests at random moments."""

    abstract = True
    fixed_count = NUM_SOURCES
    scores = False

    @abstractmethod
    def draw(self) -> tuple[Callable[[], int], int]:
        """The next request, and the texts in it."""

    def on_start(self) -> None:
        """Draw texts, and when the first one leaves."""
        self._texts = draw_texts(self.rng, _POOL, QUERY)
        self._due = self._next(0.0)

    @task
    def arrive(self) -> None:
        """Send what is due, each in a greenlet of its own."""
        if self._due is None or self._due > Clock.now() + _NAP:
            gevent.sleep(_NAP)
            return
        gevent.sleep(max(0.0, self._due - Clock.now()))
        phase = Clock.plan.index_at(self._due)
        assert phase is not None
        gevent.spawn(self.send, *self.draw(), self._due, phase)
        self._due = self._next(self._due)

    def _next(self, now: float) -> float | None:
        return Clock.plan.next_arrival(now, self.rng.expovariate(1.0), 1 / NUM_SOURCES, scoring=self.scores)


class OnlineUser(OpenLoopUser):
    """A source of single short texts."""

    abstract = True
    traffic = samples.ONLINE
    endpoint: Embeds

    def draw(self) -> tuple[Callable[[], int], int]:
        """One query."""
        text = self.rng.choice(self._texts)
        return lambda: self.endpoint.embed([text]), 1


class ScoreUser(OpenLoopUser):
    """A source of requests to score 5, 25 or 50 documents."""

    abstract = True
    traffic = samples.SCORE
    scores = True
    document_words = 0  # filled from the command line
    endpoint: Scores

    def on_start(self) -> None:
        """Draw documents too."""
        length = Lengths(mean=self.document_words, sigma=0.0, most=self.document_words)
        self._documents = draw_texts(self.rng, 2 * max(SCORED_DOCUMENTS), length)
        super().on_start()

    def draw(self) -> tuple[Callable[[], int], int]:
        """One query and its documents."""
        query, count = self.rng.choice(self._texts), self.rng.choice(SCORED_DOCUMENTS)
        documents = self.rng.sample(self._documents, count)
        return lambda: self.endpoint.score(query, documents), count


class BulkUser(TrafficUser):
    """A re-indexing job: requests of 100 passages, one after another, while the plan has bulk jobs."""

    abstract = True
    traffic = samples.BULK
    fixed_count = 2
    endpoint: Embeds

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
        texts = self.rng.choice(self._requests)
        if not self.send(lambda: self.endpoint.embed(texts), len(texts), now, phase):
            gevent.sleep(_RETRY_SECONDS)


def _grpc(environment: Environment) -> TritonGrpc:
    options = environment.parsed_options
    return TritonGrpc(environment.host, options.model, options.request_timeout)


def _http(environment: Environment) -> TritonHttp:
    options = environment.parsed_options
    return TritonHttp(environment.host, options.model, options.request_timeout, _CONNECTIONS)


def _openai(environment: Environment) -> JsonRoute:
    options = environment.parsed_options
    return JsonRoute(environment.host, options.model, options.request_timeout, _CONNECTIONS)


def _score_grpc(environment: Environment) -> TritonGrpc:
    options = environment.parsed_options
    return TritonGrpc(options.score_host or environment.host, options.score_model, options.request_timeout)


def _score_http(environment: Environment) -> TritonHttp:
    options = environment.parsed_options
    host = options.score_host or environment.host
    return TritonHttp(host, options.score_model, options.request_timeout, _CONNECTIONS)


def _rerank(environment: Environment) -> JsonRoute:
    options = environment.parsed_options
    return JsonRoute(options.score_host or environment.host, options.score_model, options.request_timeout, _CONNECTIONS)


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


class ScoreGrpc(ScoreUser):
    """Scoring by a reranker over Triton's gRPC."""

    open_endpoint = _score_grpc


class ScoreHttp(ScoreUser):
    """Scoring by a reranker over Triton's HTTP."""

    open_endpoint = _score_http


class ScoreRerank(ScoreUser):
    """Scoring over `/v1/rerank`, by a reranker or, where the gateway's model embeds, by cosine."""

    open_endpoint = _rerank
