"""The gateway before made-up servers: overload, cancellation, keys, limits, and outputs no real model here has."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from rose_client.gateway.config import GatewayConfig
from tests.support.fake_triton import (
    EMBED,
    QUANTIZED,
    SCORE,
    Call,
    FakeTriton,
    RefusalError,
    embeddings,
    fake_triton,
)
from tests.support.gateways import running_gateway
from tests.support.waiting import wait_until

_FULL = "in ensemble 'embed', the queue is full: 9 of 8 tokens and 1 of 4 requests wait; retry after 1500 ms"


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    with fake_triton() as fake:
        yield fake


@pytest.fixture(scope="module")
def shared(fake: FakeTriton) -> Iterator[httpx.Client]:
    with running_gateway(fake.url, max_inputs=600, max_body_bytes=100_000, timeout=20.0) as client:
        yield client


@pytest.fixture
def gateway(shared: httpx.Client, fake: FakeTriton) -> httpx.Client:
    fake.infer = embeddings
    shared.get("/v1/models")
    fake.calls.clear()
    return shared


def _refuse(code: grpc.StatusCode, message: str) -> Any:
    def infer(call: Call) -> Any:
        raise RefusalError(code, message)

    return infer


@pytest.mark.parametrize("text", ["tea", ["tea"]])
def test_a_full_queue_is_told_at_once(gateway: httpx.Client, fake: FakeTriton, text: Any) -> None:
    fake.infer = _refuse(grpc.StatusCode.UNAVAILABLE, _FULL)
    answer = gateway.post("/v1/embeddings", json={"input": text})
    assert answer.status_code == 429
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("2", "1500")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert answer.json()["error"]["message"].startswith("the queue is full: 9 of 8 tokens")
    assert len(fake.calls) == 1
    tei = gateway.post("/embed", json={"inputs": text})
    assert (tei.status_code, tei.json()["error_type"]) == (429, "Overloaded")


def test_a_split_request_waits_for_room(gateway: httpx.Client, fake: FakeTriton) -> None:
    refused = threading.Event()

    def full_once(call: Call) -> Any:
        if not refused.is_set():
            refused.set()
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "the queue is full; retry after 10 ms")
        return embeddings(call)

    fake.infer = full_once
    answer = gateway.post("/v1/embeddings", json={"input": ["a"] * 300 + ["b"] * 300})
    assert answer.status_code == 200
    assert [entry["embedding"].index(1) for entry in answer.json()["data"]] == [ord("a") % 8] * 300 + [
        ord("b") % 8
    ] * 300
    assert sorted(len(call.inputs["TEXT"]) for call in fake.calls) in ([88, 88, 256, 256], [88, 256, 256, 256])


@pytest.mark.parametrize(
    ("code", "message", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "in ensemble 'embed', TEXT element 0 is bad", 400),
        (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'embed' has no available versions", 503),
        (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'embed' is not found", 404),
        (grpc.StatusCode.UNAVAILABLE, "Server is stopping", 503),
        (grpc.StatusCode.UNAVAILABLE, "the request's timeout expired while it was queued, 5 ms after it came", 504),
        (grpc.StatusCode.INTERNAL, "Stub process 'rose_0_0' is not healthy.", 503),
        (grpc.StatusCode.INTERNAL, "the engine failed", 502),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", 429),
    ],
)
def test_a_servers_refusal_has_its_status(
    gateway: httpx.Client, fake: FakeTriton, code: grpc.StatusCode, message: str, status: int
) -> None:
    fake.infer = _refuse(code, message)
    answer = gateway.post("/v1/embeddings", json={"input": "tea"})
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    if status == 400:
        assert answer.json()["error"]["message"] == "input[0] is bad"


def test_one_bad_request_among_many(gateway: httpx.Client, fake: FakeTriton) -> None:
    def infer(call: Call) -> Any:
        if b"bad" in call.inputs["TEXT"]:
            raise RefusalError(grpc.StatusCode.INTERNAL, "the engine failed")
        return embeddings(call)

    fake.infer = infer
    with ThreadPoolExecutor(8) as pool:
        texts = ["tea"] * 4 + ["bad"] + ["tea"] * 23
        answers = list(pool.map(lambda text: gateway.post("/v1/embeddings", json={"input": text}), texts))
    assert [answer.status_code for answer in answers] == [200] * 4 + [502] + [200] * 23


def test_the_deadline_travels_and_holds() -> None:
    with fake_triton() as fake, running_gateway(fake.url, timeout=2.0) as gateway:
        fake.infer = lambda call: fake.wait_until_unwanted(call) and embeddings(call)
        answer = gateway.post("/v1/embeddings", json={"input": "tea"})
        assert answer.status_code == 504
        [call] = [call for call in fake.calls if call.inputs["TEXT"] == [b"tea"]]
    assert 0 < call.seconds <= 2.1
    assert 0 < call.parameters["timeout"] <= 2_000_000


def test_a_sender_that_leaves_cancels_its_work(gateway: httpx.Client, fake: FakeTriton) -> None:
    cancelled = threading.Event()

    def infer(call: Call) -> Any:
        if fake.wait_until_unwanted(call):
            cancelled.set()
        return embeddings(call)

    fake.infer = infer
    body = b'{"input": "tea"}'
    with socket.create_connection((gateway.base_url.host, gateway.base_url.port)) as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        wait_until(lambda: len(fake.calls) == 1, "the request is at the server")
    assert cancelled.wait(10)
    fake.infer = embeddings
    assert gateway.post("/v1/embeddings", json={"input": "tea"}).status_code == 200
    wait_until(lambda: 'route="/v1/embeddings",status="499"' in gateway.get("/metrics").text, "it is counted")
    assert "rose_gateway_running_requests 1.0" in gateway.get("/metrics").text  # this very one


def test_a_body_over_the_limit_is_refused_unread(gateway: httpx.Client, fake: FakeTriton) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 10_000

    for content in (b" " * 100_001, chunks()):
        answer = gateway.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["error"]["message"] == "the body is too large: the limit is 100000 bytes"
    assert fake.calls == []


def test_a_body_that_stops_coming_is_given_up(fake: FakeTriton) -> None:
    with (
        running_gateway(fake.url, timeout=0.5) as gateway,
        socket.create_connection((gateway.base_url.host, gateway.base_url.port)) as connection,
    ):
        connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408
        message = json.load(answer)["error"]["message"]
    assert message == "the rest of the body did not arrive within 0.5 s, the time a request may take"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a"] * 601}),
        ("/embed", {"inputs": ["a"] * 601}),
        ("/v2/embed", {"texts": ["a"] * 601, "input_type": "search_query"}),
        ("/v2/rerank", {"query": "a", "documents": ["a"] * 601}),
        ("/rerank", {"query": "a", "texts": ["a"] * 601}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 601}}),
        ("/tokenize", {"inputs": ["a"] * 601}),
    ],
)
def test_too_many_texts_are_refused(gateway: httpx.Client, fake: FakeTriton, path: str, body: Any) -> None:
    answer = gateway.post(path, json=body)
    assert 400 <= answer.status_code < 500
    assert "holds 601 inputs: the limit is" in answer.text
    assert fake.calls == []


def test_ids_and_trace_context_go_on_to_the_server(gateway: httpx.Client, fake: FakeTriton) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"x-request-id": "mine-7", "traceparent": parent, "tracestate": "a=1"}
    answer = gateway.post("/v1/embeddings", json={"input": "tea"}, headers=headers)
    assert answer.headers["x-request-id"] == "mine-7"
    assert "upstream;dur=" in answer.headers["server-timing"]
    [call] = fake.calls
    assert call.request_id == "mine-7"
    assert (call.parameters["traceparent"], call.parameters["tracestate"]) == (parent, "a=1")


def test_headers_of_the_wrong_form_are_as_if_not_sent(gateway: httpx.Client, fake: FakeTriton) -> None:
    headers = {"x-request-id": "two words", "traceparent": "00-xyz"}
    answer = gateway.post("/v1/embeddings", json={"input": "tea"}, headers=headers)
    assert len(answer.headers["x-request-id"]) == 32
    assert "traceparent" not in fake.calls[0].parameters


def test_options_are_passed_on(gateway: httpx.Client, fake: FakeTriton) -> None:
    gateway.post("/v1/embeddings", json={"input": "tea", "dimensions": 4, "prompt": "p: ", "truncate": False})
    gateway.post("/embed", json={"inputs": "tea", "dimensions": 4, "prompt_name": "q", "truncation_direction": "Left"})
    body = {"texts": ["tea"], "input_type": "search_query", "output_dimension": 4, "truncate": "START"}
    gateway.post("/v2/embed", json=body)
    gateway.post("/v2/rerank", json={"query": "tea", "documents": ["pot"]})
    sent = [{key: value for key, value in call.parameters.items() if key != "timeout"} for call in fake.calls]
    assert sent[:3] == [
        {"dimensions": 4, "prompt": "p: ", "truncate": False},
        {"normalize": True, "dimensions": 4, "prompt_name": "q", "truncation_direction": "left"},
        {"input_type": "query", "dimensions": 4, "truncate": True, "truncation_direction": "left"},
    ]
    by_text = {call.inputs["TEXT"][0]: call.parameters["input_type"] for call in fake.calls[3:]}
    assert by_text == {b"tea": "query", b"pot": "document"}


def test_keys(fake: FakeTriton, caplog: pytest.LogCaptureFixture) -> None:
    fake.infer = embeddings
    with running_gateway(fake.url, api_keys=("first-key", "other-key")) as gateway:

        def status(authorization: str | None, path: str = "/v1/models") -> int:
            headers = {} if authorization is None else {"authorization": authorization}
            return gateway.get(path, headers=headers).status_code

        assert [status(f"Bearer {key}") for key in ("first-key", "other-key")] == [200, 200]
        assert status("bearer first-key") == 200
        for wrong in (None, "Bearer", "Bearer first-ke", "Bearer first-key2", "Basic first-key", "first-key"):
            assert status(wrong) == 401
        assert {status(None, path) for path in ("/health", "/health/live", "/ping", "/status")} == {200}
        assert {status(None, path) for path in ("/docs", "/openapi.json", "/metrics", "/status.json", "/nothing")} == {
            401
        }
        refused = gateway.post("/v1/embeddings", json={"input": "tea"})
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert "-key" not in caplog.text
    assert "-key" not in repr(GatewayConfig(api_keys=("first-key",)))


def _codes(call: Call) -> dict[str, Any]:
    int8 = np.array([[-128, -1, 0, 1, 2, 3, 4, 127]] * len(call.inputs["TEXT"]), np.int8)
    byte = 0b10000011 if call.parameters.get("bit_order") == "lsb" else 0b11000001
    binary = np.full((len(int8), 1), byte, np.uint8)
    return {**embeddings(call), "EMBEDDING_INT8": int8[None], "EMBEDDING_BINARY": binary[None]}


def test_codes_where_the_server_has_them() -> None:
    with fake_triton(_codes, {"embed": QUANTIZED}) as fake, running_gateway(fake.url) as gateway:

        def packed(encoding: str) -> list[bytes]:
            body = {"input": ["a", "b"], "encoding_format": encoding}
            data = gateway.post("/v1/embeddings", json=body).json()["data"]
            return [base64.b64decode(entry["embedding"]) for entry in data]

        assert packed("base64_int8") == [bytes([128, 255, 0, 1, 2, 3, 4, 127])] * 2
        assert packed("base64_binary") == [bytes([0b10000011])] * 2  # the lowest bit is the first element
        assert [call.parameters["outputs"] for call in fake.calls] == ["int8", "binary"]
        kinds = ["float", "int8", "uint8", "binary", "ubinary"]
        body = {"texts": ["h"], "input_type": "search_document", "embedding_types": kinds}
        assert gateway.post("/v2/embed", json=body).json()["embeddings"] == {
            "float": [[1, 0, 0, 0, 0, 0, 0, 0]],
            "int8": [[-128, -1, 0, 1, 2, 3, 4, 127]],
            "uint8": [[0, 127, 128, 129, 130, 131, 132, 255]],
            "binary": [[0b11000001 - 128]],
            "ubinary": [[0b11000001]],
        }
        assert fake.calls[-1].parameters["outputs"] == "binary,float,int8"


def _scores(call: Call) -> dict[str, Any]:
    """Half the length of a document; its sigmoid; a token for each."""
    logits = np.array([[len(text) / 2 for text in call.inputs["DOCUMENT"]]], np.float32)
    return {"SCORE": 1 / (1 + np.exp(-logits)), "LOGIT": logits, "TOKEN_COUNT": np.ones(logits.shape, np.int32)}


def test_a_model_that_scores_is_preferred_for_reranking() -> None:
    def infer(call: Call) -> Any:
        return _scores(call) if call.model == "ranker" else embeddings(call)

    models = {"embed": EMBED, "ranker": SCORE, "step": (("WORK",), ("EMBEDDING",))}
    with fake_triton(infer, models) as fake, running_gateway(fake.url) as gateway:
        assert [entry["id"] for entry in gateway.get("/v1/models").json()["data"]] == ["embed", "ranker"]
        reply = gateway.post("/v2/rerank", json={"query": "q", "documents": ["a", "abcd", "ab"]}).json()
        assert [entry["index"] for entry in reply["results"]] == [1, 2, 0]
        assert reply["results"][0]["relevance_score"] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)
        assert (reply["model"], reply["meta"]["scoring"]) == ("ranker", "cross-encoder")
        raw = gateway.post("/rerank", json={"query": "q", "texts": ["a", "abcd"], "raw_scores": True})
        assert raw.json() == [{"index": 1, "score": 2.0}, {"index": 0, "score": 0.5}]
        assert raw.headers["x-scoring"] == "cross-encoder"
        refused = gateway.post("/v1/embeddings", json={"input": "a", "model": "ranker"})
        assert refused.status_code == 400
        assert {tuple(call.inputs["QUERY"]) for call in fake.calls if call.model == "ranker"} == {(b"q",)}
        assert gateway.get("/health").json() == {"embed": "ready", "ranker": "ready"}


def test_readiness_is_a_real_inference(fake: FakeTriton) -> None:
    fake.infer = _refuse(grpc.StatusCode.INTERNAL, "the engine failed")
    with running_gateway(fake.url) as gateway:
        assert gateway.get("/health/live").status_code == 200
        answer = gateway.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"error": "embed: INTERNAL: the engine failed", "error_type": "Unhealthy"}
        fake.infer = embeddings
        wait_until(lambda: gateway.get("/health").status_code == 200, "it is ready again")
        fake.infer = _refuse(grpc.StatusCode.UNAVAILABLE, _FULL)  # busy, and alive
        time.sleep(1.1)  # what was found holds for a second
        assert gateway.get("/health").status_code == 200


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with running_gateway(f"127.0.0.1:{taken.getsockname()[1]}") as gateway:
            assert gateway.get("/health/live").status_code == 200
            assert gateway.get("/health/ready").status_code == 503
            answer = gateway.post("/v1/embeddings", json={"input": "tea"})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"


def test_two_servers_share_the_work() -> None:
    with fake_triton() as one, fake_triton() as other, running_gateway(one.url, other.url) as gateway:
        answer = gateway.post("/v1/embeddings", json={"input": ["a"] * 2000})
        assert answer.status_code == 200
        assert len(answer.json()["data"]) == 2000
        assert min(len(one.calls), len(other.calls)) >= 2
        assert sum(len(call.inputs["TEXT"]) for call in one.calls + other.calls) == 2000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_inputs": 0}, "max_inputs is 0"),
        ({"max_body_bytes": 0}, "max_body_bytes is 0"),
        ({"api_keys": ("", "key")}, "empty key"),
    ],
)
def test_settings_leave_room(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig(**settings)
