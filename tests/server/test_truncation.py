"""The edge at 256 tokens, and what is counted there.

As in huggingface/text-embeddings-inference#28, #52, #56, #394 and raullenchai/Rapid-MLX#1381.
"""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.support.cases import HEADS, MAX_LENGTH
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close, assert_starts_with, largest_difference
from tests.support.wire import RawGrpc, RawHttp, embed, text_tensor

_FULL = "stone " * 254  # with [CLS] and [SEP] exactly 256 ids


@pytest.mark.parametrize("words", [253, 254, 255, 600])
def test_count_is_of_tokens_that_were_run(grpc_client: grpcclient.InferenceServerClient, words: int) -> None:
    assert embed(grpc_client, ["stone " * words]).counts.tolist() == [[min(words + 2, MAX_LENGTH)]]


@pytest.mark.parametrize("tail", ["stone", "stone " * 346, "violin", "tractor"])
def test_what_is_cut_has_no_effect(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, tail: str) -> None:
    full, cut = (embed(grpc_client, [text]).rows for text in (_FULL, _FULL + tail))
    assert largest_difference(full, cut) == 0.0
    assert_close(cut[0], oracle.vector(_FULL))


def test_the_last_token_that_fits_has_an_effect(grpc_client: grpcclient.InferenceServerClient) -> None:
    violin, tractor = (embed(grpc_client, ["stone " * 253 + tail]).rows for tail in ("violin", "tractor"))
    assert largest_difference(violin, tractor) > 1e-3


def test_string_and_list_forms_are_cut_alike(raw_http: RawHttp, oracle: Oracle) -> None:
    text = "stone " * 600
    (status_string, string), (status_list, listed) = (raw_http.generate(TEXT=form) for form in (text, [text]))
    assert (status_string, status_list) == (200, 200)
    assert string["TOKEN_COUNT"] == listed["TOKEN_COUNT"] == MAX_LENGTH
    assert string["EMBEDDING"] == listed["EMBEDDING"]
    assert_close(np.array(string["EMBEDDING"], np.float32), oracle.vector(text))


def test_a_million_spaces_are_no_tokens(grpc_client: grpcclient.InferenceServerClient) -> None:
    answer = embed(grpc_client, [" " * 1_000_000 + "tea"])
    assert answer.counts.tolist() == [[3]]
    assert_starts_with(answer.rows[0], HEADS["tea"])


def test_left_cut_keeps_the_end(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answer = embed(grpc_client, ["violin " * 300 + _FULL], truncation_direction="left")
    assert answer.counts.tolist() == [[MAX_LENGTH]]
    assert_close(answer.rows[0], oracle.vector(_FULL))


def test_truncate_false_admits_what_fits(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    assert_close(embed(grpc_client, [_FULL], truncate=False).rows[0], oracle.vector(_FULL))


def test_truncate_false_names_limit_and_count(raw_grpc: RawGrpc) -> None:
    tensor = text_tensor(["tea", "stone " * 600], [1, 2])
    message = raw_grpc.refusal([tensor], parameters={"truncate": False})
    assert all(part in message for part in ("TEXT element 1", "602", "256", "truncate"))
