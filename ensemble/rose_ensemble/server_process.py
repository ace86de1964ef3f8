"""A tritonserver as a child process: start, wait until it can really answer, stop."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from types import TracebackType
from typing import IO, Any

from rose_backend.errors import RoseError
from rose_ensemble.drain import Drain
from rose_ensemble.signals import StopSignals, held_signals
from rose_ensemble.stubs import Stub, left_stubs, live_stubs
from rose_ensemble.triton_http import TritonHttp
from rose_ensemble.tritonserver import EXIT_SECONDS, TritonServer
from rose_ensemble.unsent import most_unsent

_POLL_SECONDS = 0.1
_OVERDUE_SECONDS = 10.0  # after the exit timeout, at which some servers begin to hang instead
_HURRIED_SECONDS = 5.0
_ANSWERS_LEAVE_SECONDS = 5.0  # from the last work of its models' processes to the end of a server that does not end
_LEAVE_BYTES = 1 << 14  # fewer leave without the server as well; refusals of those who still ask are such
_IDLE_TICKS = 2  # hundredths of a second in that time; a process that only waits uses a tenth of one


class ServerStartError(RoseError):
    """The server did not come up; its own log says why."""


@dataclass(frozen=True)
class Endpoints:
    """Where a server listens.

    Attributes:
        host: numeric address, IPv6 without brackets.
        http_port: of HTTP.
        grpc_port: of gRPC.
        metrics_port: of the metrics page.
    """

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @classmethod
    def free(cls, host: str, http_port: int = 0, grpc_port: int = 0, metrics_port: int = 0) -> Endpoints:
        """Look the host up, replace every 0 by a port that is free now, and check the others.

        Args:
            host: a name or an address, IPv6 without brackets.
            http_port: of HTTP.
            grpc_port: of gRPC.
            metrics_port: of the metrics page.

        Raises:
            ServerStartError: a port is taken, or the host is not an address of this machine.
        """
        family, address = _resolved(host)
        sockets: list[socket.socket] = []
        try:
            for port in (http_port, grpc_port, metrics_port):
                probe = socket.socket(family)
                sockets.append(probe)  # kept open until all are found, so that they differ
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, port))
                except OSError as cause:
                    raise ServerStartError(f"cannot listen on {_joined(host, port)}: {cause.strerror}") from cause
            return cls(address, *(probe.getsockname()[1] for probe in sockets))
        finally:
            for probe in sockets:
                probe.close()

    @property
    def http(self) -> str:
        """`host:port` of HTTP, as in a URL."""
        return _joined(self.host, self.http_port)

    @property
    def grpc(self) -> str:
        """`host:port` of gRPC, as in a URL."""
        return _joined(self.host, self.grpc_port)

    @property
    def metrics(self) -> str:
        """`host:port` of the metrics page, as in a URL."""
        return _joined(self.host, self.metrics_port)


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    """Family and numeric address of a name: Triton's HTTP takes names and listens nowhere."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as cause:
        raise ServerStartError(f"cannot listen on {host}: {cause.strerror}") from cause
    # Of a name that means both, as localhost often does, the address that every client can reach.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] is not socket.AF_INET)
    return family, str(address[0])


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ServerProcess:
    """A running tritonserver; as a context manager it is stopped on the way out.

    Args:
        server: what to run.
        repository: its model repository.
        models: the ensembles to load.
        endpoints: where to listen.
        log: where its log goes; by default this process's standard error.

    Attributes:
        endpoints: where it listens.
        stopping: set once it was asked to end, or has ended.
    """

    def __init__(
        self,
        server: TritonServer,
        repository: Path,
        models: Sequence[str],
        endpoints: Endpoints,
        log: IO[bytes] | None = None,
    ) -> None:
        command = server.command(
            repository,
            models,
            endpoints.host,
            endpoints.http_port,
            endpoints.grpc_port,
            endpoints.metrics_port,
        )
        self.endpoints = endpoints
        self.stopping = threading.Event()
        self._http = TritonHttp(endpoints.host, endpoints.http_port)
        self._models = models
        self._known: set[Stub] = set()
        self._fronts: list[subprocess.Popen[Any]] = []
        self._ticks: dict[Stub, int] = {}
        self._asked = False
        self._was_ready = False
        self._told_at: float | None = None
        with ExitStack() as undo:
            with held_signals():
                # A session of its own: Ctrl-C reaches us first, and we stop the server in order.
                self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                    command, env={**os.environ, **server.environment}, stdout=log, stderr=log, start_new_session=True
                )
                undo.callback(self.stop)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Process id of tritonserver."""
        return self._process.pid

    def wait_until_ready(self, timeout: float = 120.0) -> None:
        """Return once every loaded model answers.

        Args:
            timeout: seconds.

        Raises:
            ServerStartError: the server exited, or is not ready in time.
        """
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            code = self._process.poll()
            if code is not None:
                raise ServerStartError(f"tritonserver exited with status {code} before it was ready; see its log")
            if time.monotonic() > deadline:
                raise ServerStartError(f"tritonserver is not ready after {timeout:.0f} s; see its log")
            time.sleep(_POLL_SECONDS)
        self._was_ready = True
        self.known_stubs()

    def stubs(self) -> frozenset[Stub]:
        """The processes of its models that live."""
        found = live_stubs(self.pid)
        self._known.update(found)
        return found

    def known_stubs(self) -> frozenset[Stub]:
        """Those that live, and all that `stubs` or this ever found."""
        self.stubs()
        return frozenset(self._known)

    def drain_after(self, front: subprocess.Popen[Any]) -> None:
        """Name a process that ends by itself once `stopping` is set, and needs the models until it has."""
        self._fronts.append(front)

    def ask_to_end(self) -> None:
        """What a signal does: whoever is in `wait` has the server drained, and told to end."""
        self._asked = True

    def terminate(self) -> None:
        """Ask the server to have its engines answer what they have accepted, and end; returns at once."""
        self.stopping.set()
        self._process.terminate()
        self._told_at = self._told_at or time.monotonic()

    def wait(self, signals: StopSignals | None = None) -> int:
        """Wait until the server ends; its exit status.

        At a signal it is drained, and then told to end; at another one it is told to end at once, and has
        `_HURRIED_SECONDS` for that.

        Once none of its models' processes does anything for some seconds, it is ended with status 0: it would wait till
        its exit timeout for connections of HTTP and streams of gRPC that nobody closes, and for models that never
        unload. One that outlives even that is killed.

        Args:
            signals: of a block that was begun before; by default those that come from now on.
        """
        with StopSignals() if signals is None else nullcontext(signals) as noted:
            try:
                return self._until_end(noted, EXIT_SECONDS + _OVERDUE_SECONDS)
            finally:
                self.stopping.set()

    def stop(self, timeout: float = EXIT_SECONDS + _OVERDUE_SECONDS) -> None:
        """Drain the server and ask it to end; kill it after `timeout` seconds, and end what it leaves behind.

        A stub may wait for ever for a server that ended first, and so that none of its own threads can end it: Triton
        keeps Python's interpreter lock while it waits for its server to have made a metric.
        """
        self.ask_to_end()
        with StopSignals() as signals:
            self._until_end(signals, timeout)
            self.stopping.set()
            left = left_stubs(self.pid)
            for stub in left:
                stub.kill()
            for stub in left | self._known:
                stub.remove_region()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _until_end(self, signals: StopSignals, most_seconds: float) -> int:
        drain: Drain | None = None
        worked_at = time.monotonic()
        while (status := self._process.poll()) is None:
            if self._told_at is None and (signals.came or self._asked):
                self.stopping.set()
                drain = drain or Drain(self._http, self._models, self._fronts)
                if signals.came_again or not self._was_ready or drain.is_over():
                    self.terminate()
            if signals.came_again:
                most_seconds = min(most_seconds, _HURRIED_SECONDS)
                for front in self._fronts:
                    front.kill()
            drains = drain is not None and not drain.waits_for_fronts
            if not (drains or self._told_at is not None) or self._is_at_work():
                worked_at = time.monotonic()
            elif time.monotonic() - worked_at > _ANSWERS_LEAVE_SECONDS:
                if self._told_at is not None:
                    self._kill()
                    return 0
                self.terminate()
                worked_at = time.monotonic()
            if self._told_at is not None and time.monotonic() - self._told_at > most_seconds:
                self._kill()
            time.sleep(_POLL_SECONDS)
        return status

    def _is_at_work(self) -> bool:
        """Whether a process of its models has used a core since that was last so, or an answer still leaves."""
        ticks = {stub: stub.ticks() for stub in self.stubs()}
        works = any(ticks[stub] - self._ticks.get(stub, -_IDLE_TICKS - 1) > _IDLE_TICKS for stub in ticks)
        if works:
            self._ticks = ticks
        return works or most_unsent((self.endpoints.http_port, self.endpoints.grpc_port)) > _LEAVE_BYTES

    def _kill(self) -> None:
        os.killpg(self._process.pid, SIGKILL)
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/v2/health/ready", timeout=2)[0] == 200
        except OSError:
            return False
