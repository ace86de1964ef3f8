"""What surrounds every route: ids, keys, limits, cancellation, times, counts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import re
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.context import Context
from rose_client.gateway.direct import DirectRoute
from rose_client.gateway.errors import GatewayError, error_response
from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.tracing import GatewayTracing
from rose_client.wire import EmbedOptions

logger = logging.getLogger(__name__)

OPEN_ROUTES = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/status"})
_LOOK_AFTER = 0.05  # seconds of work before anybody looks whether its sender is there: most is done by then
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")


class Shell:
    """An ASGI application around another.

    It gives every request a `Context`, lets in only whoever has a key, reads the whole body within the limit, cancels
    the route (and with it what it asked of servers) when the sender goes away, and counts what came of it.

    Args:
        app: has the routes that are not direct.
        direct: those that are, by path; POST all.
        config: keys and limits.
        metrics: where to count.
        tracing: makes a span of every request to a direct route; None: that is off.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct: Mapping[str, DirectRoute],
        config: GatewayConfig,
        metrics: GatewayMetrics,
        tracing: GatewayTracing | None = None,
    ) -> None:
        self._app = app
        self._direct = direct
        self._limit = config.max_body_bytes
        self._seconds = config.timeout
        self._keys = tuple(_digest(key.encode()) for key in config.api_keys)
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection of HTTP, or the application's start and end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        context = Context(_request_id(headers), _trace(headers))
        context.put(scope)
        answer = _Answer(send, context)
        path: str = scope["path"]
        direct = self._direct.get(path) if scope["method"] == "POST" else None
        self._metrics.began()
        span = None if self._tracing is None or direct is None else self._tracing.begin(path, context)
        try:
            self._admit(path, headers)
            body = await _read_body(headers, receive, self._limit, self._seconds)
            if body is None:
                return
            if direct is None:
                await self._app(scope, _replay(body, receive), answer)
                return
            response = await _unless_gone(direct(body, context), receive)
            if response is not None:
                await response(scope, receive, answer)
        except GatewayError as error:
            await error_response(path, error)(scope, receive, answer)
        except UnicodeEncodeError as error:  # from JSON's escapes; no server could be told
            code = ord(error.object[error.start])
            failure = GatewayError.invalid(f"a text holds the lone surrogate U+{code:04X}, which is no character")
            await error_response(path, failure)(scope, receive, answer)
        except Exception:
            logger.exception("request failed: id=%s path=%s", context.request_id, path)
            if answer.status is None:
                failure = GatewayError(500, "internal_error", "the gateway failed; its log says why")
                await error_response(path, failure)(scope, receive, answer)
        finally:
            route = direct.path if direct is not None else getattr(scope.get("route"), "path", "other")
            self._metrics.ended(route, answer.status, time.perf_counter() - context.began, context)
            if self._tracing is not None and span is not None:
                self._tracing.end(span, answer.status, context)

    def _admit(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if not self._keys or path in OPEN_ROUTES:
            return
        kind, _, presented = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not _matches(presented.strip(), self._keys):
            raise GatewayError(401, "invalid_api_key", "no valid key: send 'Authorization: Bearer KEY'")


class _Answer:
    """A `send` that adds headers and remembers the status."""

    def __init__(self, send: Send, context: Context) -> None:
        self._send = send
        self._context = context
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            total = (time.perf_counter() - self._context.began) * 1e3
            upstream = self._context.upstream_seconds * 1e3
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self._context.request_id.encode()),
                (b"x-total-time", b"%d" % round(total)),
                (b"server-timing", b"upstream;dur=%.2f, gateway;dur=%.2f" % (upstream, total - upstream)),
            ]
        await self._send(message)


async def _read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int, seconds: float) -> bytes | None:
    """The whole body; None if the sender went away before its end."""
    told = headers.get(b"content-length", b"")
    if told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    body = _Body(limit)
    if body.is_over(await receive()):  # as nearly all are at once; a timer costs 13 us
        return body.whole()
    try:
        with anyio.fail_after(seconds):
            while not body.is_over(await receive()):
                pass
    except TimeoutError:
        message = f"the rest of the body did not arrive within {seconds:g} s, the time a request may take"
        raise GatewayError(408, "request_timeout", message) from None
    return body.whole()


class _Body:
    """Parts of a body, at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._is_gone = False

    def is_over(self, message: Message) -> bool:
        """Take one more message; whether it was the last."""
        if message["type"] == "http.disconnect":
            self._is_gone = True
            return True
        part = message.get("body", b"")
        self._size += len(part)
        if self._size > self._limit:
            raise _too_large(self._limit)
        self._parts.append(part)
        return not message.get("more_body", False)

    def whole(self) -> bytes | None:
        """All of it; None if its sender went away."""
        return None if self._is_gone else b"".join(self._parts)


async def _unless_gone(work: Coroutine[Any, Any, Response], receive: Receive) -> Response | None:
    """What the work gives; None if the sender goes away before, which cancels the work.

    `receive` gives a message then, and otherwise only after the answer.
    """
    own = asyncio.current_task()
    assert own is not None
    watch: asyncio.Future[Message] | None = None
    is_gone = False

    def look() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(receive())
        watch.add_done_callback(leave)

    def leave(_: asyncio.Future[Message]) -> None:
        nonlocal is_gone
        is_gone = True
        own.cancel()

    timer = asyncio.get_running_loop().call_later(_LOOK_AFTER, look)
    try:
        return await work
    except asyncio.CancelledError:
        if not is_gone:
            raise
        return None
    finally:
        timer.cancel()
        if watch is not None:
            watch.remove_done_callback(leave)
            watch.cancel()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with a body already read."""
    unread = [body]

    async def replay() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return replay


def _too_large(limit: int) -> GatewayError:
    return GatewayError(413, "too_large", f"the body is too large: the limit is {limit} bytes")


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    return _header(headers, b"x-request-id", _REQUEST_ID) or f"{random.getrandbits(128):032x}"


def _trace(headers: Mapping[bytes, bytes]) -> EmbedOptions:
    parent = _header(headers, b"traceparent", _TRACEPARENT)
    if parent is None:
        return {}
    state = _header(headers, b"tracestate", _TRACESTATE)
    return {"traceparent": parent} if state is None else {"traceparent": parent, "tracestate": state}


def _header(headers: Mapping[bytes, bytes], name: bytes, form: re.Pattern[str]) -> str | None:
    """A header of the right form; any other is left out, as if it had not been sent."""
    sent = headers.get(name)
    if sent is None:
        return None
    value = sent.decode("latin-1")
    return value if form.fullmatch(value) else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _matches(presented: bytes, keys: Sequence[bytes]) -> bool:
    """In a time that tells nothing about the keys: digests are of one length, and all are compared."""
    digest = _digest(presented)
    return sum(hmac.compare_digest(digest, key) for key in keys) > 0


def describe_security(document: dict[str, Any]) -> None:
    """Add the bearer to an OpenAPI document."""
    document.setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}]
