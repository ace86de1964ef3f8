"""An HTTP client that does little more than parse, so that what is measured is the server.

aiohttp takes up to a millisecond more for a request on a machine of two cores, which would count as the server's.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import urlsplit

import httptools


class LeanHttp:
    """Posts JSON to one route over kept connections, as many as there are requests under way.

    Args:
        url: `http://host:port/path`.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"url is {url!r}: give http://host:port/path")
        self._host, self._port = parts.hostname, parts.port or 80
        self._head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        self._free: list[_Connection] = []

    async def post(self, body: bytes) -> bytes:
        """The answer's body.

        Raises:
            RuntimeError: a status other than 200.
            ConnectionError: the server closed the connection, or does not answer.
        """
        self._free = [connection for connection in self._free if connection.is_open]  # idle ones the server closes
        connection = self._free.pop() if self._free else await self._connect()
        status, answer = await connection.ask(f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if connection.is_open:
            self._free.append(connection)
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
        return answer

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._free:
            connection.close()

    async def _connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return connection


class _Connection(asyncio.Protocol):
    """One request after another."""

    def __init__(self) -> None:
        self.is_open = True
        self._transport: asyncio.Transport
        self._parser: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parts: list[bytes] = []

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._parts = []
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as cause:
            self.connection_lost(ConnectionError(f"no HTTP: {cause}"))
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.is_open = False
            self._transport.close()
        assert self._answer is not None
        self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))
