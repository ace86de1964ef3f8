"""A span for every request that a route answers; what the gateway asks of servers belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rose_client.gateway.context import Context
from rose_client.wire import EmbedOptions
from rose_ensemble.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class GatewayTracing:
    """Begins and ends the spans of requests.

    Args:
        tracing: of this process.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, route: str, context: Context) -> Span:
        """A request has come: its context is now that of the span, which is the sender's child, if it sent any."""
        attributes = {"http.request.method": "POST", "http.route": route, "rose.request_id": context.request_id}
        span = self._tracing.begin(f"POST {route}", self._tracing.context_of(context.trace), attributes)
        context.trace = cast("EmbedOptions", self._tracing.fields_of(span))
        return span

    def end(self, span: Span, status: int | None, context: Context) -> None:
        """The answer has left, or the sender has gone: then there is no status."""
        span.set_attribute("rose.tokens", context.num_tokens)
        if status is None:
            self._tracing.fail(span, "the sender has gone")
        else:
            span.set_attribute("http.response.status_code", status)
            self._tracing.fail(span, f"status {status}" if status >= 500 else None)
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._tracing.close()
