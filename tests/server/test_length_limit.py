"""The tokenizer file's own truncation (128) and padding (to 128) must not decide what is embedded.

As in spiceai/spiceai#13416, martin-conur/quackformers#34 and qdrant/fastembed#689.
"""

from __future__ import annotations

import pytest
import tritonclient.grpc as grpcclient

from tests.support.cases import HARBOUR, HEADS
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close, assert_starts_with, cosine
from tests.support.wire import embed

_COMMON = "grey stone lies by water " * 30
_TAILS = (_COMMON + "violin " * 60, _COMMON + "tractor " * 60)


def test_tokens_beyond_128_count(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle) -> None:
    answer = embed(grpc_client, _TAILS)
    assert answer.counts.tolist() == [[212, 212]]
    assert cosine(*answer.rows) == pytest.approx(0.8536, abs=1e-4)  # a cap at 128 gives exactly 1
    assert_close(answer.rows, oracle.vectors(_TAILS))


@pytest.mark.parametrize("text", ["tea", HARBOUR])
def test_short_text_is_not_padded(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, text: str) -> None:
    answer = embed(grpc_client, [text])
    assert_starts_with(answer.rows[0], HEADS[text])
    assert_close(answer.rows[0], oracle.vector(text))


def test_token_count_is_that_of_the_text(grpc_client: grpcclient.InferenceServerClient) -> None:
    assert embed(grpc_client, ["tea", ""]).counts.tolist() == [[3, 2]]
