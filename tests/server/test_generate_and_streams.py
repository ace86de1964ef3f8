"""The corners of Triton's other ways in: lists and parameters through `generate`, order and refusals in streams."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from rose_ensemble.server_process import Endpoints
from tests.support.oracle import Oracle
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.wire import Answer, RawHttp, text_input

Answers = queue.Queue[tuple[Any, InferenceServerException | None]]


def test_generate_takes_a_list(raw_http: RawHttp, oracle: Oracle) -> None:
    status, body = raw_http.generate(TEXT=["tea", "pot", ""])
    assert status == 200
    assert body["TOKEN_COUNT"] == [3, 3, 2]
    assert_close(np.array(body["EMBEDDING"], np.float32).reshape(3, -1), oracle.vectors(["tea", "pot", ""]))


@pytest.mark.parametrize(
    "fields", [{"prompt": "query: "}, {"parameters": {"prompt": "query: "}}], ids=["flat", "nested"]
)
def test_generate_takes_parameters(raw_http: RawHttp, oracle: Oracle, fields: dict[str, Any]) -> None:
    status, body = raw_http.generate(TEXT="tea", **fields)
    assert status == 200
    assert_close(np.array(body["EMBEDDING"], np.float32), oracle.vector("query: tea"))


def test_generate_refuses_unknown_fields(raw_http: RawHttp) -> None:
    status, body = raw_http.generate(TEXT="tea", dimension=8)
    assert status == 400
    assert "'dimension'" in body["error"]


def test_only_the_outputs_asked_for(grpc_client: grpcclient.InferenceServerClient) -> None:
    outputs = [grpcclient.InferRequestedOutput("TOKEN_COUNT")]
    result = grpc_client.infer("embed", [text_input(grpcclient, ["tea"])], outputs=outputs)
    assert result.as_numpy("TOKEN_COUNT").tolist() == [[3]]
    assert result.as_numpy("EMBEDDING") is None


@pytest.fixture
def stream(server: Endpoints) -> Iterator[tuple[grpcclient.InferenceServerClient, Answers]]:
    """A client with a started stream: each client takes one at most."""
    answers: Answers = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        yield client, answers
        client.stop_stream()


def test_streamed_answers_carry_their_requests_id(
    stream: tuple[grpcclient.InferenceServerClient, Answers], oracle: Oracle
) -> None:
    client, answers = stream
    texts = make_texts(12, longest=8, seed=17)
    for index, text in enumerate(texts):
        client.async_stream_infer("embed", [text_input(grpcclient, [text])], request_id=str(index))
    received = [answers.get(timeout=60) for _ in texts]
    assert [error for _, error in received] == [None] * len(texts)
    rows = {int(result.get_response().id): Answer.of(result).rows[0] for result, _ in received}
    assert_close(np.stack([rows[index] for index in range(len(texts))]), oracle.vectors(texts))


def test_a_stream_outlives_a_refusal(stream: tuple[grpcclient.InferenceServerClient, Answers], oracle: Oracle) -> None:
    client, answers = stream
    client.async_stream_infer("embed", [text_input(grpcclient, [b"\xff"])])
    _, error = answers.get(timeout=60)
    assert "TEXT[0, 0] is not valid UTF-8" in str(error)
    client.async_stream_infer("embed", [text_input(grpcclient, ["tea"])])
    result, error = answers.get(timeout=60)
    assert error is None
    assert_close(Answer.of(result).rows[0], oracle.vector("tea"))
