"""Running a gateway with uvicorn."""

from __future__ import annotations

import gc
import http.client
import socket
import threading
from collections.abc import Callable
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from rose_client.gateway.app import create_app
from rose_client.gateway.config import GatewayConfig

_DRAIN_SECONDS = 120  # answers under way when asked to end; as long as the servers take
_BACKLOG = 2048
_LOOK_EVERY = 0.1  # seconds between two looks whether a worker answers
_LOOK_SECONDS = 5.0  # for one


class WorkerFailedError(Exception):
    """A worker could not start, or ended before the gateway had answered; its own words are on the standard error."""


def make_server(config: GatewayConfig) -> uvicorn.Server:
    """A gateway that serves, once its `run` is given a socket, until SIGTERM or SIGINT.

    It answers what it has accepted before it ends.

    Args:
        config: servers, limits and keys.
    """
    return uvicorn.Server(_settings(partial(create_app, config), 1))


def run(config: GatewayConfig, listener: socket.socket, workers: int, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and return.

    Args:
        config: servers, limits and keys.
        listener: what `listen` gave.
        workers: processes that share it; one that dies once the gateway has answered is replaced, and where that cannot
            start, all end.
        announce: called, in a thread of its own, when the gateway answers.

    Raises:
        WorkerFailedError: one of several workers ended before that, or could not start later.
    """
    watch = _Watch(listener, announce)
    settings = _settings(partial(_app_of_process, config), workers)
    with watch:
        if workers == 1:
            uvicorn.Server(settings).run([listener])
            return
        supervisor = _Supervisor(settings, listener, watch)
        supervisor.run()
    if supervisor.failure is not None:
        raise WorkerFailedError(supervisor.failure)


class _Watch:
    """Asks for the liveness route until it is answered; a context manager that gives up on the way out."""

    def __init__(self, listener: socket.socket, announce: Callable[[], None]) -> None:
        self.is_answering = False
        self._host, self._port, *more = listener.getsockname()
        if more and more[-1]:  # an address that holds on one link only
            self._host = f"{self._host}%{more[-1]}"
        self._announce = announce
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch-start", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def _look(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY):
            if self._answers():
                self.is_answering = True
                self._announce()
                return

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_LOOK_SECONDS)
        try:
            connection.request("GET", "/health/live")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):  # nobody is there yet who takes what the socket has queued
            return False
        finally:
            connection.close()


class _Supervisor(Multiprocess):
    """Replaces workers only once they have been seen to work: what fails at its start would do so for ever."""

    def __init__(self, settings: uvicorn.Config, listener: socket.socket, watch: _Watch) -> None:
        super().__init__(settings, [listener])
        self.failure: str | None = None
        self._watch = watch

    def handle_hup(self) -> None:
        """End: whoever closes a terminal does not want new workers."""
        self.should_exit.set()

    def keep_subprocess_alive(self) -> None:
        """Look after the workers, now and then."""
        if self.should_exit.is_set():
            return
        if self._watch.is_answering:
            super().keep_subprocess_alive()
            if any(process.exitcode == STARTUP_FAILURE for process in self.processes):  # then uvicorn ends all of them
                self.failure = "a worker could not be replaced: the new one failed to start"
            return
        ended = [process.exitcode for process in self.processes if process.exitcode is not None]
        if ended:
            self.failure = f"a worker ended with status {ended[0]} before the gateway answered"
            self.should_exit.set()


def _app_of_process(config: GatewayConfig) -> ASGIApp:
    """The application of a process that does nothing else."""
    app = create_app(config)
    gc.collect()
    gc.freeze()  # what was imported stays: looking through it again and again would hold requests up
    return app


def _settings(app: Callable[[], ASGIApp], workers: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=True,
        workers=workers,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        proxy_headers=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 picks a free one.

    Raises:
        OSError: the port is taken, or the host is not an address of this machine.
    """
    family, _, _, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda entry: entry[0] is not socket.AF_INET
    )
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)  # so that whoever is told the address may connect
    except OSError:
        listener.close()
        raise
    return listener
