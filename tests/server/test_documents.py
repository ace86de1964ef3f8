"""Documents in chunks through a real server: a checkpoint that is trained for it, and late chunking."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen3Model

from rose_client import AsyncRoseClient, ChunkLimits, EmbedOptions, RequestError, RoseClient
from rose_ensemble.server_process import Endpoints
from tests.support.contextual import SEPARATOR, contextual_vectors, make_contextual
from tests.support.gateways import running_gateway
from tests.support.oracle import Oracle
from tests.support.serving import Serving, serving
from tests.support.vectors import assert_close
from tests.support.wire import RawGrpc, RawHttp, int_tensor, text_tensor

pytestmark = pytest.mark.slow

_DOCUMENTS = [
    ["tea pot", "the harbour wall", "a stone"],
    ["violin"],
    ["", "tractor and rope", ""],
    ["tea pot", "the harbour wall", "a violin and a tractor"],
]
_CHUNKS = [chunk for chunks in _DOCUMENTS for chunk in chunks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contextual")


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen3Model:
    return make_contextual(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, folder: Path, model: Qwen3Model) -> Iterator[Serving]:
    options = (f"--checkpoint={folder}", "--name=context", "--probe-interval=600")
    with serving(tmp_path_factory.mktemp("serve"), *options) as found:
        yield found


async def test_documents_and_texts_share_batches(served: Serving, folder: Path, model: Qwen3Model) -> None:
    expected = contextual_vectors(folder, model, _DOCUMENTS)
    alone = contextual_vectors(folder, model, [[chunk] for chunk in _CHUNKS if chunk])
    codes = EmbedOptions(outputs=["int8", "binary"])
    async with AsyncRoseClient(served.grpc, model="context", limits=ChunkLimits(max_texts=4)) as client:
        for _ in range(5):
            documents, coded, texts, query = await asyncio.gather(
                client.contextual(_DOCUMENTS),
                client.contextual(_DOCUMENTS, **codes),
                client.embed([chunk for chunk in _CHUNKS if chunk]),
                client.contextual([["tea pot"]], normalize=True),
            )
            assert [len(document.vectors) for document in documents] == [3, 1, 3, 3]
            assert [document.token_counts.tolist() for document in documents] == [[2, 3, 2], [1], [0, 3, 0], [2, 3, 5]]
            assert_close(np.concatenate([document.vectors for document in documents]), expected)
            int8 = np.concatenate([document.int8 for document in coded])
            off = np.abs(int8 - np.rint(127 * np.tanh(expected)))
            assert off.max() <= 1
            assert (off != 0).mean() < 0.02
            bits = np.unpackbits(np.concatenate([document.binary for document in coded]), axis=-1)
            sure = (np.abs(expected) > 1e-4) | (expected == 0)
            assert (bits == (expected >= 0))[sure].all()
            assert_close(texts, alone)
            assert_close(query[0].vectors, alone[:1] / np.linalg.norm(alone[0]))


@pytest.mark.parametrize(
    ("documents", "options", "words"),
    [
        ([["tea", f"pot{SEPARATOR}"]], EmbedOptions(), f"TEXT element 1 holds '{SEPARATOR}'"),
        ([["tea"], ["stone " * 40, "tea " * 24]], EmbedOptions(), "from TEXT element 1 on has 65 tokens"),
        ([["tea", "pot"]], EmbedOptions(late_chunking=False), "'late_chunking' is false"),
        ([["tea", "pot"]], EmbedOptions(outputs=["int8"], normalize=True), "'normalize' is true"),
    ],
)
def test_refusals(served: Serving, documents: list[list[str]], options: EmbedOptions, words: str) -> None:
    with RoseClient(served.grpc, model="context") as client, pytest.raises(RequestError) as refused:
        client.contextual(documents, **options)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert words in refused.value.message


def test_the_gateway(served: Serving, folder: Path, model: Qwen3Model) -> None:
    expected = contextual_vectors(folder, model, _DOCUMENTS)
    with running_gateway(served.grpc) as gateway:

        def rows(**fields: Any) -> list[bytes]:
            answer = gateway.post("/v1/contextualizedembeddings", json={"input": _DOCUMENTS, **fields})
            documents = answer.json()["data"]
            assert [len(document["data"]) for document in documents] == [3, 1, 3, 3]
            return [base64.b64decode(entry["embedding"]) for document in documents for entry in document["data"]]

        codes = np.stack([np.frombuffer(row, np.int8) for row in rows()])
        assert np.abs(codes - np.rint(127 * np.tanh(expected))).max() <= 1
        packed = np.stack([np.frombuffer(row, np.uint8) for row in rows(encoding_format="base64_binary")])
        sure = (np.abs(expected) > 1e-4) | (expected == 0)
        assert (np.unpackbits(packed, axis=1, bitorder="little") == (expected >= 0))[sure].all()


def test_late_chunking_of_a_common_checkpoint(server: Endpoints, oracle: Oracle) -> None:
    pieces = ["Tides turn twice", " a day at the harbour wall."]
    hidden = oracle.model.encode("".join(pieces), output_value="token_embeddings").cpu().numpy()
    means = np.stack([hidden[:4].mean(0), hidden[4:].mean(0)])  # [CLS] tides turn twice | ...
    with RoseClient(server.grpc) as client:
        [document, single] = client.contextual([pieces, ["tea"]], late_chunking=True)
        assert_close(document.vectors, means / np.linalg.norm(means, axis=1, keepdims=True))
        assert_close(single.vectors[0], oracle.vector("tea"))
        with pytest.raises(RequestError, match="not trained on documents in chunks"):
            client.contextual([pieces])
        with pytest.raises(RequestError, match="CHUNK_COUNTS does not say"):
            client.embed(pieces, late_chunking=True)


def test_chunk_counts_on_the_wire(raw_grpc: RawGrpc, raw_http: RawHttp) -> None:
    texts = text_tensor(["tea", "pot", "rope"], (1, 3))
    late = {"late_chunking": True}
    answer = raw_grpc.infer([texts, int_tensor("CHUNK_COUNTS", [2, 1])], parameters=late)
    assert answer["EMBEDDING"].shape == (1, 3, 384)
    assert answer["TOKEN_COUNT"].tolist() == [[2, 2, 3]]
    words = "CHUNK_COUNTS adds up to 4, but TEXT holds 3 texts"
    assert words in raw_grpc.refusal([texts, int_tensor("CHUNK_COUNTS", [2, 2])], parameters=late)
    tokens = [int_tensor("TOKEN_IDS", [101, 102]), int_tensor("TOKEN_LENGTHS", [2]), int_tensor("CHUNK_COUNTS", [1])]
    assert "CHUNK_COUNTS goes with TEXT" in raw_grpc.refusal(tokens, parameters=late)
    status, body = raw_http.post(
        "/v2/models/embed/infer",
        {
            "inputs": [
                {"name": "TEXT", "datatype": "BYTES", "shape": [1, 3], "data": ["tea", "pot", "rope"]},
                {"name": "CHUNK_COUNTS", "datatype": "INT32", "shape": [1, 2], "data": [2, 1]},
            ],
            "parameters": late,
        },
    )
    assert status == 200, body
    assert_close(body["outputs"][0]["data"], answer[body["outputs"][0]["name"]].ravel())
