"""The same vectors by every way in: HTTP infer as JSON and binary, HTTP generate, unary and streaming gRPC."""

from __future__ import annotations

import queue

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.cases import HARBOUR
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close
from tests.support.wire import RawHttp, embed, text_input

_TEXTS = [HARBOUR, "tea"]


def test_unary_grpc(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    assert_close(embed(grpc_client, _TEXTS).vectors, oracle.vectors(_TEXTS)[None])


def test_streaming_grpc(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answers: queue.Queue[tuple[object, object]] = queue.Queue()
    grpc_client.start_stream(lambda result, error: answers.put((result, error)))
    for _ in range(3):
        grpc_client.async_stream_infer("embed", [text_input(grpcclient, _TEXTS)])
    for _ in range(3):
        result, error = answers.get(timeout=60)
        assert error is None
        assert isinstance(result, grpcclient.InferResult)
        assert_close(result.as_numpy("EMBEDDING"), oracle.vectors(_TEXTS)[None])
    grpc_client.stop_stream()


def test_http_binary(http_client: httpclient.InferenceServerClient, oracle: Oracle) -> None:
    result = http_client.infer("embed", [text_input(httpclient, _TEXTS, binary_data=True)])
    assert_close(result.as_numpy("EMBEDDING"), oracle.vectors(_TEXTS)[None])


def test_http_json(raw_http: RawHttp, oracle: Oracle) -> None:
    status, body = raw_http.infer(_TEXTS, [2, 1])
    assert status == 200
    outputs = {output["name"]: output for output in body["outputs"]}
    assert outputs["EMBEDDING"]["shape"] == [2, 1, 384]
    assert_close(np.reshape(outputs["EMBEDDING"]["data"], (2, 384)), oracle.vectors(_TEXTS))
    assert outputs["TOKEN_COUNT"]["data"] == [12, 3]


def test_http_generate(raw_http: RawHttp, oracle: Oracle) -> None:
    status, body = raw_http.generate(TEXT="tea")
    assert status == 200
    assert_close(body["EMBEDDING"], oracle.vector("tea"))
