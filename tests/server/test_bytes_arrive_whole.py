"""BYTES inputs reach the tokenizer as they were sent. As in triton-inference-server/python_backend#384,
triton-inference-server/server#8301 and triton-inference-server/pytriton#78.
"""

from __future__ import annotations

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.oracle import Oracle
from tests.support.vectors import assert_close, largest_difference
from tests.support.wire import Answer, embed, text_input

_LARGE = ("grey stone lies by water, " * 4000)[:102_400]
_TEXTS = ["", "tea", "caf\u00e9", _LARGE]


def test_over_grpc(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answer = embed(grpc_client, _TEXTS)
    assert answer.counts.tolist() == [[2, 3, 3, 256]]
    assert_close(answer.rows, oracle.vectors(_TEXTS))


def test_over_http_as_binary(http_client: httpclient.InferenceServerClient, oracle: Oracle) -> None:
    result = http_client.infer("embed", [text_input(httpclient, _TEXTS, binary_data=True)])
    assert_close(Answer.of(result).rows, oracle.vectors(_TEXTS))


def test_elements_differ(grpc_client: grpcclient.InferenceServerClient) -> None:
    """With a numpy the server was not built for, every element of an array equals its first."""
    first, second = embed(grpc_client, ["tea", "violin"]).rows
    assert largest_difference(first, second) > 1e-2


def test_many_kinds_of_text(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    texts = [
        "\u6f6e\u6c50",
        "\U0001f30a wave",
        "a\0b",
        "e\u0301 \u00e9",
        "\u0627\u0644\u0645\u062f",
        "x" * 5000,
        "\ufeffBOM",
    ]
    assert_close(embed(grpc_client, texts).rows, oracle.vectors(texts))
