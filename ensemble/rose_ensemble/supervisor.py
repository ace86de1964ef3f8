"""Keeps the models of a running tritonserver answering: probes each, reloads one that failed, gives up aloud.

What Triton 24.10 does when a stub (the process of a Python model) is killed or stopped, each tried:

- Server and models stay "ready"; requests that reach the stub are answered "Stub process ... is not healthy" within
  about a second (HTTP 500). Those that it had taken, to answer them later, are never answered: only the caller's own
  deadline ends them. So it is with an engine's queue, and with a tokenizer's large requests. Other models' requests
  are not affected.
- Unloading the ensemble with its dependents makes `/v2/models/<name>/ready` say 400 at once, and `/v2/health/ready`
  too while anything is still unloading; once all is unloaded the latter says 200 again, because a server without
  models counts as ready. Requests meanwhile get 404. So a load balancer should watch the model, not the server.
- Loading it again starts fresh stubs, also while the old ones are unloading.
- A step that somebody loaded by its own name (to have a changed file read, say) is not unloaded with the ensemble. When
  that is loaded again a second set of the step's stubs starts beside the first, and the time after none does.
- One that is killed while it holds a lock in the memory that it shares with Triton ends Triton
  (`boost::interprocess::lock_exception`): 1 of 300 that were killed within 3 ms of an answer on a busy machine.
- The memory it shared (/dev/shm) stays, a megabyte and more, also when the server ends.
- Every request that met the dead stub holds its model for ever: the old generation never finishes unloading, its
  living stubs stay (with their memory), and tritonserver's own orderly exit runs into its timeout.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from rose_backend.errors import RoseError
from rose_ensemble.health import Event, HealthPolicy, ModelHealth, Step
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.probe import Observation, Outcome, error_text, probe, read_batches
from rose_ensemble.server_process import ServerProcess, ServerStartError
from rose_ensemble.signals import StopSignals
from rose_ensemble.stubs import Stub
from rose_ensemble.triton_http import TritonHttp

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 30.0  # Triton runs on a probe that is given up, so a busy server gets no more than two a minute
_POLL_SECONDS = 0.1
_UNLOAD_SECONDS = 60.0
_LOAD_SECONDS = 600.0
_END_SECONDS = 30.0
_DRAIN_SECONDS = 60.0  # for the accepted work of stubs that live when their neighbour died


class ModelFailedError(RoseError):
    """A model failed and could not be brought back; names it and the cause."""


class Supervisor:
    """Watches over the ensembles of a server, each in a thread of its own.

    Args:
        server: a started server.
        pipelines: what it serves.
        policy: when a model counts as failed, and how often it is reloaded.
    """

    def __init__(self, server: ServerProcess, pipelines: Sequence[Pipeline], policy: HealthPolicy) -> None:
        self._server = server
        self._pipelines = pipelines
        self._policy = policy
        self._failure: Exception | None = None

    def wait_until_answering(self, timeout: float = 120.0) -> None:
        """Return once a tiny inference through every ensemble has been answered.

        Args:
            timeout: seconds for all of them.

        Raises:
            ServerStartError: one is answered with an error, or not in time.
        """
        deadline = time.monotonic() + timeout
        for pipeline in self._pipelines:
            watch = _Watch(self._server, pipeline, self._policy)
            while (found := watch.probe()).outcome is Outcome.BUSY:
                if time.monotonic() > deadline:
                    raise ServerStartError(
                        f"model {pipeline.name!r} gave no answer within {timeout:.0f} s; last: {found.cause}"
                    )
                time.sleep(_POLL_SECONDS)
            if found.outcome is not Outcome.ANSWERED:
                raise ServerStartError(
                    f"model {pipeline.name!r} cannot {'score' if pipeline.scores else 'embed'}: {found.cause}"
                )

    def run(self, signals: StopSignals | None = None) -> int:
        """Watch until the server ends, by itself or asked to; its exit status.

        Args:
            signals: as `ServerProcess.wait` takes them.

        Raises:
            ModelFailedError: a model could not be brought back; the server has been stopped.
        """
        for pipeline in self._pipelines:
            # Daemons: one that waits for an answer does not keep the process from ending.
            threading.Thread(target=self._guard, args=(pipeline,), name=f"watch-{pipeline.name}", daemon=True).start()
        status = self._server.wait(signals)
        if self._failure is not None:
            raise self._failure
        return status

    def _guard(self, pipeline: Pipeline) -> None:
        try:
            _Watch(self._server, pipeline, self._policy).run()
        except Exception as failure:  # noqa: BLE001 - whatever ends a watch ends the server; `run` raises it
            self._failure = failure
            self._server.ask_to_end()


class _Watch:
    """The loop of one ensemble."""

    def __init__(self, server: ServerProcess, pipeline: Pipeline, policy: HealthPolicy) -> None:
        at = server.endpoints
        self._server = server
        self._pipeline = pipeline
        self._policy = policy
        self._http = TritonHttp(at.host, at.http_port)
        self._metrics = TritonHttp(at.host, at.metrics_port)
        self._leftover: frozenset[Stub] = frozenset()
        self._drained_at = 0.0

    def run(self) -> None:
        """Probe and mend until the server is stopping.

        Raises:
            ModelFailedError: the model does not come back.
        """
        health = ModelHealth(self._policy, time.monotonic())
        while not self._server.stopping.wait(max(0.0, health.due - time.monotonic())):
            if time.monotonic() > self._drained_at:
                self._end_leftover()
            if health.step is Step.PROBE:
                found = self.probe()
                if not self._server.stopping.is_set():
                    self._report(health, health.observed(time.monotonic(), found))
            elif health.step is Step.RELOAD:
                error = self._reload()
                health.reloaded(time.monotonic(), error)
            else:
                name = self._pipeline.name
                raise ModelFailedError(f"model {name!r} failed, {health.tries} reloads in vain; last: {health.cause}")

    def probe(self) -> Observation:
        """One probe, and whether the engine moves."""
        seconds = min(_PROBE_SECONDS, self._policy.hang)
        found = probe(self._http, self._pipeline.name, seconds, scores=self._pipeline.scores)
        return Observation(found.outcome, found.cause, read_batches(self._metrics, self._pipeline.rose_name))

    def _reload(self) -> str | None:
        """Unload the ensemble and its steps, load; the error if that failed."""
        self._end_leftover()  # a try before this one failed, perhaps for want of the memory they hold
        steps = (self._pipeline.tokenize_name, self._pipeline.rose_name)
        self._leftover = frozenset(stub for stub in self._server.known_stubs() if stub.model in steps)
        self._drained_at = time.monotonic() + _DRAIN_SECONDS
        models, ensemble = "/v2/repository/models", self._pipeline.name
        try:
            for name in (ensemble, *steps):
                unload = {"parameters": {"unload_dependents": name == ensemble}}
                status, text = self._http.post(f"{models}/{name}/unload", unload, _UNLOAD_SECONDS)
                if status != 200:
                    return f"unload: {error_text(text)}"
            if self._server.stopping.is_set():  # new processes would only keep it from ending
                return "reload: the server is stopping"
            status, text = self._http.post(f"{models}/{ensemble}/load", {}, _LOAD_SECONDS)
        except OSError as cause:
            return f"reload: {cause}"
        self._server.known_stubs()  # the new ones, from now on
        return None if status == 200 else error_text(text)

    def _end_leftover(self) -> None:
        """Kill what is left of the generation before, and remove what it shared: its unloading never ends."""
        for stub in self._leftover:
            stub.kill()
            stub.remove_region()
        deadline = time.monotonic() + _END_SECONDS  # till then the system takes its time to have their memory back
        while self._leftover & self._server.stubs() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._leftover = frozenset()

    def _report(self, health: ModelHealth, event: Event | None) -> None:
        name = self._pipeline.name
        if event is Event.FAILED:
            logger.error("model failed: model=%s cause=%r", name, health.cause)
        elif event is Event.RECOVERED:
            seconds = time.monotonic() - health.failed_at
            logger.warning("model recovered: model=%s seconds=%.1f tries=%d", name, seconds, health.tries)
