"""When requests are traced, what becomes of their context, and what an engine's reports become."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install 'rose-on-triton[tracing]'")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from rose_backend.core import Batch, Lane, Outcome, Request, Segment
from rose_backend.errors import InvalidArgumentError
from rose_backend.metrics import BatchReport, NullMetrics, RequestReport
from rose_client.gateway.context import Context
from rose_client.gateway.tracing import GatewayTracing
from rose_client.wire import embedding_inference
from rose_ensemble.engine_tracing import TracedMetrics
from rose_ensemble.tokenize_step import TokenizeOutput
from rose_ensemble.tracing import Tracing, open_tracing, traces_url, triton_options
from rose_ensemble.work import Work

_ID, _SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_SENT = f"00-{_ID}-{_SPAN}-01"


class Spans:
    """Tracing that keeps its spans."""

    def __init__(self, **settings: Any) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, **settings)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracing = Tracing(provider)

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._kept.get_finished_spans())

    @property
    def by_name(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.all}


@dataclass
class Asked:
    """A request as Triton's Python backend offers it; its own trace is that of the server."""

    parameters_: str = ""
    context: str | None = None

    def parameters(self) -> str:
        if self.parameters_ == "broken":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return self.parameters_

    def trace(self) -> Asked:
        return self

    def get_context(self) -> str | None:
        return self.context


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/otlp/"}, "http://c:4318/otlp/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://d/x"}, "http://d/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_the_environment_says_where_spans_go(environment: dict[str, str], url: str | None) -> None:
    assert traces_url(environment) == url
    options = triton_options(environment)
    assert options == [] if url is None else f"--trace-config=opentelemetry,url={url}" in options


def test_a_protocol_that_is_not_spoken_is_told(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert open_tracing("rose", environment) is None
    assert "tracing is off" in caplog.text
    assert "'grpc'" in caplog.text


@pytest.mark.parametrize(
    ("asked", "parent"),
    [
        (Asked(json.dumps({"traceparent": _SENT})), _SPAN),
        (
            Asked(json.dumps({"traceparent": _SENT}), json.dumps({"traceparent": f"00-{_ID}-{_SPAN[::-1]}-01"})),
            _SPAN[::-1],
        ),
        (Asked(), None),
        (Asked(json.dumps({"prompt": "traceparent"})), None),
        (Asked(json.dumps({"traceparent": 7})), None),
        (Asked(json.dumps({"traceparent": "00-xyz"})), None),
        (Asked("broken"), None),
    ],
)
def test_the_span_a_request_belongs_to(asked: Asked, parent: str | None) -> None:
    spans = Spans()
    context = spans.tracing.parent_of(asked)
    if parent is None:
        assert context is None
        return
    assert context is not None
    spans.tracing.add("x", context, (1.0, 2.0), {})
    [span] = spans.all
    assert span.parent is not None
    assert (f"{span.parent.span_id:016x}", f"{span.context.trace_id:032x}") == (parent, _ID)


def test_a_call_of_the_tokenizer() -> None:
    spans, traced = Spans(), Asked(json.dumps({"traceparent": _SENT}))
    work = Work((1, 2), 0, np.array([3, 5], np.int32), np.arange(8, dtype=np.int32))
    output = TokenizeOutput(work, work.lengths[None])
    before = time.time_ns()
    spans.tracing.tokenized([traced, Asked(), traced], [output, output, InvalidArgumentError("no")], 0.25)
    good, bad = spans.all
    assert good.attributes == {"rose.call.requests": 3, "rose.sequences": 2, "rose.tokens": 8}
    assert (good.status.is_ok, bad.status.is_ok, bad.status.description) == (True, False, "no")
    assert good.end_time - good.start_time == pytest.approx(0.25e9, abs=1e3)
    assert good.end_time == pytest.approx(before, abs=1e9)


def test_what_an_engine_reports_of_traced_requests() -> None:
    spans = Spans()
    metrics = TracedMetrics(NullMetrics(), spans.tracing)
    requests = [
        Request(np.arange(4, dtype=np.int32), np.array([4], np.int32), lambda _: None, lane=Lane.ONLINE) for _ in "ab"
    ]
    traced, _ = requests
    traced.tag = metrics.tag_of(Asked(json.dumps({"traceparent": _SENT})))
    now = time.monotonic()
    traced.packed_at = now + 1
    batch = Batch.of(tuple(Segment(request, 0, 1) for request in requests))
    metrics.batch_done(BatchReport(batch, 0.5, 0.125, 8, replayed=True, began_at=now + 1.5, finished_at=now + 2))
    metrics.requests_done([RequestReport(request, Outcome.SERVED, 2.0) for request in requests])
    expired = Request(np.arange(4, dtype=np.int32), np.array([4], np.int32), lambda _: None, lane=Lane.BULK)
    expired.tag = metrics.tag_of(Asked(json.dumps({"traceparent": _SENT})))
    metrics.requests_done([RequestReport(expired, Outcome.EXPIRED, 2.0)])
    metrics.close()
    step, copy, served, dropped = spans.all
    assert [span.name for span in spans.all] == ["step", "copy", "queue", "queue"]
    assert step.attributes == {
        "rose.tokens": 4,
        "rose.sequences": 1,
        "rose.batch.tokens": 8,
        "rose.batch.sequences": 2,
        "rose.batch.requests": 2,
        "rose.bucket.tokens": 16,
        "rose.graph": "replay",
    }
    assert step.end_time - step.start_time == pytest.approx(0.375e9, abs=1e3)
    assert copy.end_time - copy.start_time == pytest.approx(0.125e9, abs=1e3)
    assert copy.end_time - served.end_time == pytest.approx(1e9, abs=1e6)  # packed a second before it was done
    assert (served.status.is_ok, dropped.status.description) == (True, "expired")


def test_the_gateway_hands_its_own_span_on() -> None:
    spans = Spans()
    gateway = GatewayTracing(spans.tracing)
    context = Context("mine", {"traceparent": _SENT, "tracestate": "a=1"})
    span = gateway.begin("/v1/embeddings", context)
    assert context.trace == {"traceparent": f"00-{_ID}-{span.get_span_context().span_id:016x}-01", "tracestate": "a=1"}
    gateway.end(span, 503, context)
    gateway.end(gateway.begin("/v1/rerank", alone := Context("alone", {})), None, alone)
    first, second = spans.all
    assert (first.parent is not None, second.parent) == (True, None)
    assert (first.status.description, second.status.description) == ("status 503", "the sender has gone")
    assert first.attributes is not None
    assert first.attributes["http.response.status_code"] == 503


def test_what_is_not_sampled_is_not_handed_on() -> None:
    gateway = GatewayTracing(Spans(sampler=ALWAYS_OFF).tracing)
    context = Context("mine", {"traceparent": _SENT})
    gateway.end(gateway.begin("/v1/embeddings", context), 200, context)
    assert context.trace == {}


@pytest.mark.parametrize(("flags", "sent"), [("01", True), ("03", True), ("00", False), ("02", False)])
def test_a_sampled_context_travels_as_metadata_too(flags: str, sent: bool) -> None:
    parent = f"00-{_ID}-{_SPAN}-{flags}"
    call = embedding_inference("embed", [b"a"], {"traceparent": parent}, 1.0)
    assert call.request.parameters["traceparent"].string_param == parent
    assert call.metadata == ((("traceparent", parent),) if sent else ())
    assert embedding_inference("embed", [b"a"], {}, 1.0).metadata == ()
