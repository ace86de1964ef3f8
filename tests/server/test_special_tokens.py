"""Control tokens written by a user count as such, as in sentence-transformers, whatever way they come in.

The choice is documented; see huggingface/tokenizers#787 and huggingface/transformers#31337 for the alternative.
"""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from rose_client import RoseClient
from rose_ensemble.server_process import Endpoints
from tests.support.cases import HEADS
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close, assert_starts_with
from tests.support.wire import RawHttp, embed

_FORGED = "[CLS] tea [SEP] pot"


def test_they_are_control_tokens(grpc_client: grpcclient.InferenceServerClient) -> None:
    answer = embed(grpc_client, [_FORGED])
    assert answer.counts.tolist() == [[6]]  # 101 101 5572 102 8962 102; the literal reading has 11
    assert_starts_with(answer.rows[0], HEADS[_FORGED])


@pytest.mark.parametrize("text", [_FORGED, "[PAD] tea", "tea [MASK] [UNK] pot", "[PAD]"])
def test_as_in_sentence_transformers(grpc_client: grpcclient.InferenceServerClient, oracle: Oracle, text: str) -> None:
    assert_close(embed(grpc_client, [text, "tea"]).rows, oracle.vectors([text, "tea"]))


def test_every_way_in_reads_them_alike(server: Endpoints, raw_http: RawHttp, oracle: Oracle) -> None:
    with RoseClient(server.grpc) as client:
        assert_close(client.embed([_FORGED])[0], oracle.vector(_FORGED))
    _, body = raw_http.generate(TEXT=_FORGED)
    assert_close(np.array(body["EMBEDDING"], np.float32), oracle.vector(_FORGED))
