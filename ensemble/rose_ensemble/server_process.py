"""A tritonserver as a child process: start, wait until it can really answer, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from rose_backend.errors import RoseError
from rose_ensemble.drain import Drain
from rose_ensemble.stubs import Stub, left_stubs, live_stubs
from rose_ensemble.triton_http import TritonHttp
from rose_ensemble.tritonserver import EXIT_SECONDS, TritonServer

_POLL_SECONDS = 0.1
_OVERDUE_SECONDS = 10.0  # after the exit timeout, at which some servers begin to hang instead
_ANSWERS_LEAVE_SECONDS = 2.0  # from the end of the last model process to the end of a server that cannot end itself


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


@contextmanager
def _held_signals(held: list[int]) -> Iterator[None]:
    """Collect SIGTERM and SIGINT instead of handling them: what they raise while a process starts would lose it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hold(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signature of a handler)
        held.append(signum)

    previous = {number: signal.signal(number, hold) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
        self._abandoned: frozenset[Stub] = frozenset()
        self._known: set[Stub] = set()
        self._fronts: list[Callable[[], bool]] = []
        self._told_at: float | None = None
        held: list[int] = []
        with _held_signals(held):
            # A session of its own: Ctrl-C reaches us first, and we stop the server in order.
            self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                command, env={**os.environ, **server.environment}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            for number in held:
                signal.raise_signal(number)
        except BaseException:
            self.stop()
            raise

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

    def abandon(self, stubs: Iterable[Stub]) -> None:
        """Name processes of models that may never finish unloading: `wait` does not wait for those."""
        self._abandoned |= frozenset(stubs)

    def drain_after(self, has_ended: Callable[[], bool]) -> None:
        """Name what ends by itself once `stopping` is set, and needs the models until it has.

        Args:
            has_ended: asked again and again, from the thread in `wait`.
        """
        self._fronts.append(has_ended)

    def terminate(self) -> None:
        """Ask the server to have its engines answer what they have accepted, and end; returns at once."""
        self.stopping.set()
        self._process.terminate()
        self._told_at = self._told_at or time.monotonic()

    def wait(self) -> int:
        """Wait until the server ends; its exit status.

        At SIGTERM or SIGINT it is drained, and then told to end; at another one it is told to end at once.

        A server that was given abandoned processes is ended, with status 0, once all others have: it would wait for
        models that never unload until its exit timeout. One that outlives even that is killed: a model that never
        unloads and callers that wait without a deadline make Triton 24.10 hang in its gRPC server.
        """
        asked: list[int] = []

        def note(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signature of a handler)
            asked.append(signum)  # and nothing else: it may interrupt what holds the lock that more would need

        previous = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._wait(asked)
        finally:
            self.stopping.set()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self, timeout: float = 60.0) -> None:
        """Ask the server to finish what it has and end; kill it after `timeout` seconds, and end what it leaves behind.

        A stub may wait for ever for a server that ended first, and so that none of its own threads can end it: Triton
        keeps Python's interpreter lock while it waits for its server to have made a metric.
        """
        if self._process.poll() is None:
            self.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._kill()
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

    def _wait(self, asked: Sequence[int]) -> int:
        drain: Drain | None = None
        served_at = time.monotonic()
        while (status := self._process.poll()) is None:
            if asked and drain is None:
                self.stopping.set()
                drain = Drain(self._http, self._models, self._fronts)
            if drain is not None and self._told_at is None and (len(asked) > 1 or drain.is_over()):
                self.terminate()
            if not (self.stopping.is_set() and self._abandoned) or self.stubs() - self._abandoned:
                served_at = time.monotonic()
            elif time.monotonic() - served_at > _ANSWERS_LEAVE_SECONDS:
                self._kill()
                return 0
            if self._told_at is not None and time.monotonic() - self._told_at > EXIT_SECONDS + _OVERDUE_SECONDS:
                self._kill()
            time.sleep(_POLL_SECONDS)
        return status

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/v2/health/ready", timeout=2)[0] == 200
        except OSError:
            return False
