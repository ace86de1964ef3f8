"""Spans of requests that belong to a trace, for a collector that speaks OTLP.

Off unless the environment names an endpoint, by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
`OTEL_EXPORTER_OTLP_ENDPOINT`); where it names none, nothing of OpenTelemetry is imported. Its other variables hold as
well: `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`, `OTEL_SERVICE_NAME`, `OTEL_EXPORTER_OTLP_HEADERS`,
`OTEL_TRACES_SAMPLER`, `OTEL_BSP_SCHEDULE_DELAY` and so on.

A model's process makes no trace of its own: a request that came without a trace context has no spans.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rose_backend.errors import RoseError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanKind
    from opentelemetry.util.types import AttributeValue

    from rose_ensemble.tokenize_step import TokenizeOutput  # needs `tokenizers`, which a gateway need not have

logger = logging.getLogger(__name__)

_PROTOCOL = "http/protobuf"
_FIELDS = ("traceparent", "tracestate")


def traces_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """Where spans go; None: tracing is off."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if own := environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return own
    shared = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{shared.rstrip('/')}/v1/traces" if shared else None


def triton_options(environment: Mapping[str, str] = os.environ) -> list[str]:
    """What has Triton make spans of its own, only of requests that carry a trace context; nothing if tracing is off."""
    url = traces_url(environment)
    if url is None:
        return []
    settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={url}")
    return [f"--trace-config={setting}" for setting in settings]


def open_tracing(service: str, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Tracing for a process; None, and no import, where it is off, or cannot be had: that is logged.

    Args:
        service: its `service.name`, unless the environment says otherwise.
        environment: of the process.
    """
    if traces_url(environment) is None:
        return None
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", _PROTOCOL):
        logger.warning("tracing is off: the protocol of OTEL_EXPORTER_OTLP is %r, not %r", protocol, _PROTOCOL)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as cause:
        logger.warning("tracing is off: pip install 'rose-on-triton[tracing]' (%s is missing)", cause.name)
        return None
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # what the SDK says where nobody does
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class Tracing:
    """Makes spans of what has happened already, so that nothing is held open while requests are on their way.

    Args:
        provider: of the SDK.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer("rose")
        self._propagator = TraceContextTextMapPropagator()

    def parent_of(self, request: Any) -> Context | None:
        """The span that a request of Triton's Python backend belongs to; None: to none.

        It is Triton's own span of the model, where Triton traces, else what the parameter `traceparent` says.
        """
        own: str | None = request.trace().get_context()
        if own is not None:
            return self.context_of(json.loads(own))
        try:
            parameters = request.parameters()
        except UnicodeDecodeError:  # its sender is told so by whoever reads the others
            return None
        return self.context_of(json.loads(parameters)) if _FIELDS[0] in parameters else None

    def context_of(self, carrier: Mapping[str, Any]) -> Context | None:
        """The context in W3C's `traceparent` and `tracestate`; None: there is none, or it is not well formed."""
        fields = {name: carrier[name] for name in _FIELDS if isinstance(carrier.get(name), str)}
        if not fields:
            return None
        context = self._propagator.extract(fields)
        return context if self._api.get_current_span(context).get_span_context().is_valid else None

    def begin(self, name: str, parent: Context | None, attributes: Mapping[str, AttributeValue]) -> Span:
        """A span of a server, from now until its `end`; without a parent, the first of a trace."""
        from opentelemetry.context import Context

        kind: SpanKind = self._api.SpanKind.SERVER
        # An empty context instead of None: whatever is current in this process has nothing to do with it.
        return self._tracer.start_span(name, parent or Context(), kind, attributes)

    def fields_of(self, span: Span) -> dict[str, str]:
        """The context that makes others children of a span; empty: it is not sampled, and they need not know of it."""
        if not span.get_span_context().trace_flags.sampled:
            return {}
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._api.set_span_in_context(span))
        return carrier

    def add(
        self,
        name: str,
        parent: Context,
        times: tuple[float, float],
        attributes: Mapping[str, AttributeValue],
        error: str | None = None,
    ) -> None:
        """A span that is over.

        Args:
            name: what happened.
            parent: from `parent_of`.
            times: when it began and ended, in `time.monotonic()` seconds.
            attributes: what is known of it.
            error: why it failed, if it did.
        """
        shift = time.time_ns() - time.monotonic_ns()
        began, ended = (round(at * 1e9) + shift for at in times)
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=began)
        self.fail(span, error)
        span.end(ended)

    def fail(self, span: Span, error: str | None) -> None:
        """Mark a span that went wrong; None: it did not."""
        if error is not None:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))

    def tokenized(self, requests: Sequence[Any], results: Sequence[TokenizeOutput | RoseError], seconds: float) -> None:
        """A call of the tokenizer that has just ended: a span for each of its requests that belongs to a trace."""
        ended = time.monotonic()
        for request, result in zip(requests, results, strict=True):
            parent = self.parent_of(request)
            if parent is None:
                continue
            attributes: dict[str, AttributeValue] = {"rose.call.requests": len(requests)}
            error = str(result) if isinstance(result, RoseError) else None
            if not isinstance(result, RoseError):
                attributes["rose.sequences"] = len(result.work.lengths)
                attributes["rose.tokens"] = len(result.work.input_ids)
            self.add("tokenize", parent, (ended - seconds, ended), attributes, error)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
