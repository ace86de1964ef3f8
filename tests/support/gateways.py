"""A gateway in a thread beside a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.server import listen, make_server
from tests.support.waiting import wait_until


@contextmanager
def running_gateway(*urls: str, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a gateway on a free port, which is stopped with the block."""
    listener = listen("127.0.0.1", 0)
    server = make_server(GatewayConfig(urls=urls, **settings))
    thread = threading.Thread(target=server.run, args=([listener],), name="gateway")
    thread.start()
    try:
        wait_until(lambda: server.started, "the gateway is up")
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
