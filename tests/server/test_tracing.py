"""One trace of a request, from the gateway through Triton, tokenizing, queue, step and copy, at a real collector."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import tritonclient.grpc as grpcclient

pytest.importorskip("opentelemetry.sdk", reason="pip install 'rose-on-triton[tracing]'")

from rose_client import RequestError, RoseClient
from tests.support.collector import Collector, SentSpan, running_collector
from tests.support.gateways import running_gateway
from tests.support.serving import Serving, serving

_OF_THE_ENGINE = {"queue", "step", "copy"}
_SENDER = "b7ad6b7169203331"
_TRITONS = 6
"""Spans that Triton makes of a request: the call, the ensemble, its two steps (one has the name of our own span), and
the time that each step's process had it."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Collector]]:
    """`rose serve` that sends spans to a collector; gateways that start meanwhile do so too."""
    with pytest.MonkeyPatch.context() as patch, running_collector() as (collector, endpoint):
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds
        with serving(tmp_path_factory.mktemp("traced"), "--device=cpu", "--token-budget=64") as server:
            yield server, collector


def _trace_id(number: int) -> str:
    return f"{number:032x}"


def _arrived(collector: Collector, trace: str, count: int) -> dict[str, list[SentSpan]]:
    """The spans of a trace by name, once there are so many."""
    deadline = time.monotonic() + 20
    while len(spans := [span for span in collector.spans if span.trace == trace]) < count:
        assert time.monotonic() < deadline, f"{count} spans wanted, there are {[(s.service, s.name) for s in spans]}"
        time.sleep(0.05)
    found: dict[str, list[SentSpan]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return found


@pytest.mark.slow
def test_one_trace_from_the_gateway_to_the_copy(traced: tuple[Serving, Collector]) -> None:
    server, collector = traced
    trace, began = _trace_id(0xA1), time.time_ns()
    headers = {"traceparent": f"00-{trace}-{_SENDER}-01"}
    with running_gateway(server.grpc) as gateway:
        answer = gateway.post(
            "/v1/embeddings", json={"input": ["one two three", "four"], "model": "embed"}, headers=headers
        )
        ended = time.time_ns()
    assert answer.status_code == 200, answer.text
    names = {"POST /v1/embeddings", "tokenize", *_OF_THE_ENGINE}
    found = _arrived(collector, trace, len(names) + _TRITONS)
    assert found.keys() == {*names, "InferRequest", "embed", "rose", "compute"}
    [request], [inference], [ensemble] = (found[name] for name in ("POST /v1/embeddings", "InferRequest", "embed"))
    [engine] = found["rose"]
    [tokenizer, tokenize] = sorted(found["tokenize"], key=lambda span: span.service == "rose")
    assert [span.service for span in (request, ensemble, tokenizer, tokenize)] == [
        "rose-gateway", "triton-inference-server", "triton-inference-server", "rose",
    ]  # fmt: skip
    assert (request.parent, inference.parent, ensemble.parent) == (_SENDER, request.id, inference.id)
    assert (tokenizer.parent, engine.parent, tokenize.parent) == (ensemble.id, ensemble.id, tokenizer.id)
    [queue], [step], [copy] = (found[name] for name in ("queue", "step", "copy"))
    assert {span.parent for span in (queue, step, copy)} == {engine.id}
    assert {span.service for span in (queue, step, copy)} == {"rose"}

    # [CLS] one two three [SEP], [CLS] four [SEP]
    assert (tokenize.attributes["rose.tokens"], tokenize.attributes["rose.sequences"]) == (8, 2)
    assert queue.attributes == {"rose.lane": "online", "rose.tokens": 8, "rose.sequences": 2}
    assert step.attributes == {
        "rose.tokens": 8,
        "rose.sequences": 2,
        "rose.batch.tokens": 8,
        "rose.batch.sequences": 2,
        "rose.batch.requests": 1,
        "rose.bucket.tokens": 8,
        "rose.graph": "eager",
    }
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["rose.tokens"] == 8
    assert request.attributes["rose.request_id"] == answer.headers["x-request-id"]

    # Each in its time: one after another, within the request, and none of no length but the copy of a CPU.
    assert began <= request.began <= tokenize.began <= tokenize.ended <= queue.began <= queue.ended
    assert queue.ended <= step.began + 1e6  # they are of two threads
    assert step.began < step.ended <= copy.began <= copy.ended <= request.ended <= ended
    assert 0 < tokenize.seconds < request.seconds
    assert copy.seconds == 0
    assert not any(span.failed for spans in found.values() for span in spans)


@pytest.mark.slow
def test_a_request_that_spreads_over_batches_has_a_step_each(traced: tuple[Serving, Collector]) -> None:
    server, collector = traced
    trace = _trace_id(0xA2)
    with RoseClient(server.grpc) as client:
        client.embed(["one two three four five six"] * 20, traceparent=f"00-{trace}-{_SENDER}-01")
    found = _arrived(collector, trace, _TRITONS + 2 + 2 * 3)  # 20 sequences of 8 tokens, 64 at a time
    steps = sorted(found["step"], key=lambda span: span.began)
    assert [step.attributes["rose.tokens"] for step in steps] == [64, 64, 32]
    assert [span.attributes["rose.tokens"] for span in found["queue"]] == [160]
    assert len(found["copy"]) == 3


@pytest.mark.slow
def test_what_is_not_sampled_or_carries_no_context_has_no_spans(traced: tuple[Serving, Collector]) -> None:
    server, collector = traced
    quiet, loud = _trace_id(0xA3), _trace_id(0xA4)
    with RoseClient(server.grpc) as client:
        before = len({span.trace for span in collector.spans})
        client.embed(["one"])
        client.embed(["one"], traceparent=f"00-{quiet}-{_SENDER}-00")
        client.embed(["one"], traceparent="00-xyz")
        client.embed(["one"], traceparent=f"00-{loud}-{_SENDER}-01")
    _arrived(collector, loud, _TRITONS + 4)
    assert {span.trace for span in collector.spans} >= {loud}
    assert len({span.trace for span in collector.spans}) == before + 1


@pytest.mark.slow
def test_a_refusal_is_a_failed_span(traced: tuple[Serving, Collector]) -> None:
    server, collector = traced
    trace = _trace_id(0xA5)
    with RoseClient(server.grpc) as client, pytest.raises(RequestError, match="prompt_name"):
        client.embed(["one"], prompt_name="nobody's", traceparent=f"00-{trace}-{_SENDER}-01")
    found = _arrived(collector, trace, 5)  # all of Triton's but the engine's step, and the tokenizer's own
    assert [span.failed for span in found["tokenize"] if span.service == "rose"] == [True]
    assert not _OF_THE_ENGINE & found.keys()


@pytest.mark.slow
def test_without_tritons_own_tracing_the_parameter_is_the_parent(traced: tuple[Serving, Collector]) -> None:
    server, collector = traced
    with grpcclient.InferenceServerClient(server.grpc) as triton, RoseClient(server.grpc) as client:
        triton.update_trace_settings(settings={"trace_level": ["OFF"]})
        trace = _trace_id(0xA6)
        client.embed(["one"], traceparent=f"00-{trace}-{_SENDER}-01")
        found = _arrived(collector, trace, 4)
    assert found.keys() == {"tokenize", *_OF_THE_ENGINE}
    assert {span.parent for spans in found.values() for span in spans} == {_SENDER}
