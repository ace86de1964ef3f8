"""Strings, lists and token ids: each is what it says, or is refused.

Token ids are used as they are: nothing is added, nothing is cut. As in sgl-project/sglang#6427 and #6568,
michaelfeil/infinity#130 and rag-wtf/open-text-embeddings#17.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.support.cases import MAX_LENGTH, POT_IDS, TEA_IDS, VOCAB_SIZE
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close
from tests.support.wire import Answer, RawGrpc, RawHttp, Tensor, int_tensor, text_tensor, token_inputs


def _embed_ids(client: grpcclient.InferenceServerClient, sequences: list[tuple[int, ...]]) -> Answer:
    return Answer.of(client.infer("embed", token_inputs(grpcclient, sequences)))


def test_string_and_one_item_list_are_the_same(raw_http: RawHttp, oracle: Oracle) -> None:
    (_, string), (_, listed) = (raw_http.generate(TEXT=form) for form in ("tea", ["tea"]))
    assert string == listed
    assert_close(np.array(string["EMBEDDING"], np.float32), oracle.vector("tea"))


def test_two_item_list_gives_two_rows(raw_http: RawHttp, oracle: Oracle) -> None:
    status, body = raw_http.infer(["tea", "pot"], [1, 2])
    assert status == 200
    embedding = next(output for output in body["outputs"] if output["name"] == "EMBEDDING")
    assert embedding["shape"] == [1, 2, 384]
    assert_close(np.array(embedding["data"], np.float32).reshape(2, -1), oracle.vectors(["tea", "pot"]))


def test_one_sequence_of_ids(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answer = _embed_ids(grpc_client, [TEA_IDS])
    assert answer.vectors.shape == (1, 1, 384)  # never three inputs
    assert answer.counts.tolist() == [[3]]
    assert_close(answer.rows[0], oracle.vector("tea"))


def test_two_sequences_of_ids(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answer = _embed_ids(grpc_client, [TEA_IDS, POT_IDS])
    assert answer.counts.tolist() == [[3, 3]]
    assert_close(answer.rows, oracle.vectors(["tea", "pot"]))


def test_sequences_of_unequal_length(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answer = _embed_ids(grpc_client, [(101, 102), (101, 5572, 8962, 102), TEA_IDS])
    assert answer.counts.tolist() == [[2, 4, 3]]
    assert_close(answer.rows, oracle.vectors(["", "tea pot", "tea"]))


def test_no_special_tokens_are_added_to_ids(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    import torch

    with torch.inference_mode():
        hidden = oracle.model[0].model(torch.tensor([[5572]]), torch.ones(1, 1)).last_hidden_state[0, 0]
    answer = _embed_ids(grpc_client, [(5572,)])
    assert answer.counts.tolist() == [[1]]
    assert_close(answer.rows[0], (hidden / hidden.norm()).numpy())


def test_ids_as_json(raw_http: RawHttp, oracle: Oracle) -> None:
    status, body = raw_http.generate(TOKEN_IDS=[*TEA_IDS, *POT_IDS], TOKEN_LENGTHS=[3, 3])
    assert status == 200
    assert body["TOKEN_COUNT"] == [3, 3]
    assert_close(np.array(body["EMBEDDING"], np.float32).reshape(2, -1), oracle.vectors(["tea", "pot"]))


@pytest.mark.parametrize(
    ("ids", "lengths", "parts"),
    [
        ((101, -1, 102), (3,), ("TOKEN_IDS", "-1", str(VOCAB_SIZE - 1))),
        ((101, VOCAB_SIZE, 102), (3,), ("TOKEN_IDS", str(VOCAB_SIZE), str(VOCAB_SIZE - 1))),
        ((5572,) * (MAX_LENGTH + 1), (MAX_LENGTH + 1,), ("TOKEN_LENGTHS", "257", "256")),
        (TEA_IDS, (2,), ("TOKEN_LENGTHS", "2", "3")),
        (TEA_IDS, (4, -1), ("TOKEN_LENGTHS", "-1")),
        (TEA_IDS, (3, 0), ("TOKEN_LENGTHS", "0", "at least 1")),
        (TEA_IDS, (2**31 - 1, 2**31 - 1, 5), ("TOKEN_LENGTHS", "4294967299", "3")),
    ],
)
def test_wrong_ids_are_refused(
    raw_grpc: RawGrpc, ids: tuple[int, ...], lengths: tuple[int, ...], parts: tuple[str, ...]
) -> None:
    message = raw_grpc.refusal([int_tensor("TOKEN_IDS", ids), int_tensor("TOKEN_LENGTHS", lengths)])
    assert all(part in message for part in parts), message


def test_longest_sequence_of_ids_is_served(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    ids = oracle.model.tokenizer("stone " * 254)["input_ids"]
    assert len(ids) == MAX_LENGTH
    assert_close(_embed_ids(grpc_client, [tuple(ids)]).rows[0], oracle.vector("stone " * 254))


@pytest.mark.parametrize(
    "tensors",
    [
        [text_tensor(["tea"], [1, 1]), int_tensor("TOKEN_IDS", TEA_IDS), int_tensor("TOKEN_LENGTHS", [3])],
        [text_tensor(["tea"], [1, 1]), int_tensor("TOKEN_IDS", TEA_IDS)],
        [int_tensor("TOKEN_IDS", TEA_IDS)],
        [int_tensor("TOKEN_LENGTHS", [3])],
    ],
    ids=["both", "text-and-ids", "ids-alone", "lengths-alone"],
)
def test_either_text_or_ids(raw_grpc: RawGrpc, tensors: list[Tensor]) -> None:
    assert "either TEXT, or TOKEN_IDS with TOKEN_LENGTHS" in raw_grpc.refusal(tensors)


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        (int_tensor("TEXT", [5]), "TEXT"),
        (Tensor("TOKEN_IDS", "FP32", [1, 1], b"\0\0\0\0"), "TOKEN_IDS"),
        (Tensor("TOKEN_IDS", "INT64", [1, 1], b"\0" * 8), "TOKEN_IDS"),
        (Tensor("TEXT", "BOOL", [1, 1], b"\1"), "TEXT"),
    ],
)
def test_wrong_datatype_is_refused(raw_grpc: RawGrpc, tensor: Tensor, name: str) -> None:
    message = raw_grpc.refusal([tensor])
    assert name in message
    assert tensor.datatype in message


def test_prompt_with_ids_is_refused(raw_grpc: RawGrpc) -> None:
    tensors = [int_tensor("TOKEN_IDS", TEA_IDS), int_tensor("TOKEN_LENGTHS", [3])]
    assert "prompts apply to TEXT" in raw_grpc.refusal(tensors, parameters={"prompt": "query: "})


@pytest.mark.parametrize("value", [["tea", 5], {}, 5, True, [True], {"text": "tea"}])
def test_json_of_another_type_is_refused(raw_http: RawHttp, value: Any) -> None:
    """Triton's own JSON reader says 500 here in 24.10, before any model sees the request."""
    status, body = raw_http.generate(TEXT=value)
    assert status in (400, 500)
    assert "Unable to parse" in body["error"]
    assert raw_http.generate(TEXT="tea")[0] == 200


def test_nested_json_is_the_same_tensor(raw_http: RawHttp, oracle: Oracle) -> None:
    """KServe lets `data` be nested or flat; the shape alone says how many texts there are."""
    status, body = raw_http.infer([["tea"]], [1, 1])
    assert status == 200
    embedding = next(output for output in body["outputs"] if output["name"] == "EMBEDDING")
    assert_close(np.array(embedding["data"], np.float32), oracle.vector("tea"))
