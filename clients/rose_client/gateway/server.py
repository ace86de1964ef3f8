"""Running a gateway with uvicorn."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from rose_client.gateway.app import create_app
from rose_client.gateway.config import GatewayConfig

_DRAIN_SECONDS = 120  # answers under way when asked to end; as long as the servers take
_BACKLOG = 2048


def make_server(config: GatewayConfig) -> uvicorn.Server:
    """A gateway that serves, once its `run` is given a socket, until SIGTERM or SIGINT.

    It answers what it has accepted before it ends.

    Args:
        config: servers, limits and keys.
    """
    return uvicorn.Server(_settings(partial(create_app, config), 1))


def run(config: GatewayConfig, listener: socket.socket, workers: int) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and return.

    Args:
        config: servers, limits and keys.
        listener: what `listen` gave.
        workers: processes that share it; one that dies is replaced.
    """
    settings = _settings(partial(_app_of_process, config), workers)
    if workers == 1:
        uvicorn.Server(settings).run([listener])
        return
    Multiprocess(settings, [listener]).run()


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
