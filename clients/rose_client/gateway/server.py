"""Running a gateway with uvicorn."""

from __future__ import annotations

import socket

import uvicorn

from rose_client.gateway.app import create_app
from rose_client.gateway.config import GatewayConfig

_DRAIN_SECONDS = 120  # answers under way when asked to end; as long as the servers take
_BACKLOG = 2048


def make_server(config: GatewayConfig) -> uvicorn.Server:
    """A gateway that serves, once its `run` is given a bound socket, until SIGTERM or SIGINT.

    It answers what it has accepted before it ends.

    Args:
        config: servers, limits and keys.
    """
    settings = uvicorn.Config(
        create_app(config),
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
    return uvicorn.Server(settings)


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
