"""HTTP calls to a tritonserver of our own: always direct, whatever proxy the environment names."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any


class TritonHttp:
    """One address; every call is a connection of its own, so threads may share an object.

    Args:
        host: numeric address, IPv6 without brackets.
        port: of HTTP or of the metrics page.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def get(self, path: str, timeout: float) -> tuple[int, str]:
        """Status and body.

        Args:
            path: from the first slash on.
            timeout: seconds of silence after which the call is given up.

        Raises:
            OSError: no connection, no answer in time (`TimeoutError`), or one cut short.
        """
        return self._call("GET", path, None, timeout)

    def post(self, path: str, body: Mapping[str, Any], timeout: float) -> tuple[int, str]:
        """Send JSON; as `get` otherwise."""
        return self._call("POST", path, json.dumps(body).encode(), timeout)

    def _call(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except http.client.HTTPException as cause:
            raise ConnectionError(f"no proper HTTP answer: {cause!r}") from cause
        finally:
            connection.close()
