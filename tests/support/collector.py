"""An OTLP collector over HTTP that keeps the spans it is sent: in protobuf, and in JSON, as Triton sends them."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_ERROR = 2


@dataclass(frozen=True)
class SentSpan:
    """One span; ids in hexadecimal, times in nanoseconds since the epoch."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, Any]
    failed: bool

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9


class Collector:
    """What has come so far; `POST /v1/traces` adds to it."""

    def __init__(self) -> None:
        self.spans: list[SentSpan] = []
        self.paths: set[str] = set()

    def named(self, name: str, trace: str | None = None) -> list[SentSpan]:
        return [span for span in self.spans if span.name == name and trace in (None, span.trace)]


@contextmanager
def running_collector() -> Iterator[tuple[Collector, str]]:
    """A collector and its endpoint, `http://host:port`."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.paths.add(self.path)
            collector.spans += _of_json(body) if "json" in self.headers["Content-Type"] else _of_protobuf(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # of connections that wait to be taken

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield collector, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _of_protobuf(body: bytes) -> list[SentSpan]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        SentSpan(
            _attributes(resource.resource.attributes).get("service.name", ""),
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _attributes(span.attributes),
            span.status.code == _ERROR,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _of_json(body: bytes) -> list[SentSpan]:
    found = []
    for resource in json.loads(body)["resourceSpans"]:
        about = {pair["key"]: pair["value"] for pair in resource["resource"]["attributes"]}
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                attributes = {pair["key"]: next(iter(pair["value"].values())) for pair in span.get("attributes", ())}
                ids = (span[name] for name in ("traceId", "spanId"))
                times = (int(span[name]) for name in ("startTimeUnixNano", "endTimeUnixNano"))
                failed = span.get("status", {}).get("code") == _ERROR
                service = about["service.name"]["stringValue"]
                found.append(
                    SentSpan(service, span["name"], *ids, span.get("parentSpanId", ""), *times, attributes, failed)
                )
    return found
