"""A tritonserver as a child process: start, wait until it can really answer, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from rose_backend.errors import RoseError
from rose_ensemble.tritonserver import TritonServer

_POLL_SECONDS = 0.1


class ServerStartError(RoseError):
    """The server did not come up; its own log says why."""


@dataclass(frozen=True)
class Endpoints:
    """Where a server listens."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @classmethod
    def free(cls, host: str, http_port: int = 0, grpc_port: int = 0, metrics_port: int = 0) -> Endpoints:
        """Replace every 0 by a port that is free now, and check the others.

        Raises:
            ServerStartError: a port is taken, or the host is not an address of this machine.
        """
        sockets: list[socket.socket] = []
        try:
            for port in (http_port, grpc_port, metrics_port):
                probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                sockets.append(probe)  # kept open until all are found, so that they differ
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError as cause:
                    raise ServerStartError(f"cannot listen on {host}:{port}: {cause.strerror}") from cause
            return cls(host, *(probe.getsockname()[1] for probe in sockets))
        finally:
            for probe in sockets:
                probe.close()

    @property
    def http(self) -> str:
        """`host:port` of HTTP."""
        return f"{self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        """`host:port` of gRPC."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def metrics(self) -> str:
        """`host:port` of the metrics page."""
        return f"{self.host}:{self.metrics_port}"


class ServerProcess:
    """A running tritonserver; as a context manager it is stopped on the way out.

    Args:
        server: what to run.
        repository: its model repository.
        models: the ensembles to load.
        endpoints: where to listen.
        log: where its log goes; by default this process's standard error.
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
        # A session of its own: Ctrl-C reaches us first, and we stop the server in order.
        self._process = subprocess.Popen(  # noqa: S603 (our own command line)
            command, env={**os.environ, **server.environment}, stdout=log, stderr=log, start_new_session=True
        )

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

    def wait(self) -> int:
        """Wait until the server ends, passing SIGTERM and SIGINT on as an orderly stop; its exit status."""

        def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signature of a handler)
            self._process.terminate()

        previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self, timeout: float = 60.0) -> None:
        """Ask the server to finish what it has and end; kill it after `timeout` seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoints.http}/v2/health/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
