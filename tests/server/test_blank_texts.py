"""Texts without tokens of their own: one shared vector, no hang, no harm to neighbours.

As in langgenius/dify#6807, sgl-project/sglang#4988, ggml-org/llama.cpp#5724, ollama/ollama#3944 and
vllm-project/vllm#7632.
"""

from __future__ import annotations

import pytest
import tritonclient.grpc as grpcclient

from tests.support.cases import BLANKS, HARBOUR, HEADS
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close, assert_starts_with
from tests.support.wire import RawGrpc, RawHttp, embed, text_tensor


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_alone(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, blank: str) -> None:
    answer = embed(grpc_client, [blank])
    assert answer.counts.tolist() == [[2]]
    assert_starts_with(answer.rows[0], HEADS[""])
    assert_close(answer.rows[0], oracle.vector(""))


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_between_others(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, blank: str) -> None:
    answer = embed(grpc_client, ["tea", blank, HARBOUR])
    assert_close(answer.rows, oracle.vectors(["tea", "", HARBOUR]))
    assert_close(embed(grpc_client, ["tea"]).rows[0], oracle.vector("tea"))


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_over_json(raw_http: RawHttp, blank: str) -> None:
    status, body = raw_http.generate(TEXT=blank)
    assert status == 200
    assert_starts_with(body["EMBEDDING"], HEADS[""])


def test_no_texts_are_refused(raw_grpc: RawGrpc, raw_http: RawHttp) -> None:
    assert "TEXT has shape [1, 0]" in raw_grpc.refusal([text_tensor([], [1, 0])])
    status, body = raw_http.infer([], [1, 0])
    assert status == 400
    assert "at least one text" in body["error"]


def test_missing_input_is_refused(raw_grpc: RawGrpc, raw_http: RawHttp) -> None:
    raw_grpc.refusal([])
    status, _ = raw_http.post("/v2/models/embed/infer", {"inputs": []})
    assert status == 400


@pytest.mark.parametrize("data", [None, [None]])
def test_null_is_refused_by_the_http_front(raw_http: RawHttp, data: object) -> None:
    """Triton's own JSON reader says 500 here in 24.10, before any model sees the request."""
    status, body = raw_http.infer(data, [1, 1])
    assert status in (400, 500)
    assert "Unable to parse" in body["error"]
    assert raw_http.generate(TEXT="tea")[0] == 200
