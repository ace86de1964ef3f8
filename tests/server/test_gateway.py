"""The gateway's routes before a real server: right values, whatever the API."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.merging import MergePolicy
from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.models import Models
from rose_client.hedging import HedgePolicy
from rose_ensemble.server_process import Endpoints
from tests.support.cases import BLANKS, DIM, HARBOUR, HEADS, MAX_LENGTH, POT_IDS, TEA_IDS, VOCAB_SIZE
from tests.support.gateways import running_gateway
from tests.support.oracle import Oracle
from tests.support.texts import make_texts
from tests.support.vectors import assert_close, assert_starts_with
from tests.support.waiting import wait_until

_DOCUMENTS = ["a pot of green tea", "a tractor in the field", "tea"]


@pytest.fixture(scope="module")
def gateway(server: Endpoints) -> Iterator[httpx.Client]:
    with running_gateway(server.grpc, metrics_urls=(server.metrics,)) as client:
        yield client


def _embeddings(gateway: httpx.Client, value: Any, **fields: Any) -> dict[str, Any]:
    answer = gateway.post("/v1/embeddings", json={"model": "embed", "input": value, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def _vectors(gateway: httpx.Client, value: Any, **fields: Any) -> Any:
    return [entry["embedding"] for entry in _embeddings(gateway, value, **fields)["data"]]


def _openai_error(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"]


def test_openai_reply(gateway: httpx.Client, oracle: Oracle) -> None:
    reply = _embeddings(gateway, [HARBOUR, "tea"], user="somebody")
    assert reply["object"] == "list"
    assert reply["model"] == "embed"
    assert [(entry["object"], entry["index"]) for entry in reply["data"]] == [("embedding", 0), ("embedding", 1)]
    assert reply["usage"] == {"prompt_tokens": 15, "total_tokens": 15}
    assert_close([entry["embedding"] for entry in reply["data"]], oracle.vectors([HARBOUR, "tea"]))


async def test_engines_behind_an_ensemble_are_counted(server: Endpoints) -> None:
    """Where there is one, a slow request is not sent a second time, whatever was asked for."""
    models = Models(GatewayConfig(urls=(server.grpc,), hedging=HedgePolicy()), GatewayMetrics())
    try:
        assert await models._num_engines("embed") == 1
        assert (await models.get("embed")).client._dispatcher.hedger is None
    finally:
        await models.close()


def test_string_and_list_of_one_are_alike(gateway: httpx.Client) -> None:
    assert _embeddings(gateway, "tea") == _embeddings(gateway, ["tea"])


def test_token_ids(gateway: httpx.Client, oracle: Oracle) -> None:
    assert_close(_vectors(gateway, list(TEA_IDS)), oracle.vectors(["tea"]))
    assert_close(_vectors(gateway, [list(TEA_IDS), list(POT_IDS)]), oracle.vectors(["tea", "pot"]))


def test_base64_is_little_endian_float32(gateway: httpx.Client, oracle: Oracle) -> None:
    for text, packed in zip(
        [HARBOUR, "tea"], _vectors(gateway, [HARBOUR, "tea"], encoding_format="base64"), strict=True
    ):
        vector = np.frombuffer(base64.b64decode(packed), "<f4")
        assert vector.shape == (DIM,)
        assert_close(vector, oracle.vector(text))


def test_blank_texts_have_one_vector(gateway: httpx.Client, oracle: Oracle) -> None:
    mixed = _vectors(gateway, ["tea", *BLANKS, HARBOUR])
    for vector in [*mixed[1:-1], *(_vectors(gateway, blank)[0] for blank in BLANKS)]:
        assert_starts_with(vector, HEADS[""])
    assert_close([mixed[0], mixed[-1]], oracle.vectors(["tea", HARBOUR]))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": []},
        {"input": [[]]},
        {"input": 5},
        {"input": True},
        {"input": [True]},
        {"input": [["tea"]]},
        {"input": ["tea", 5]},
        {"input": {"text": "tea"}},
        {"input": "\ud800"},
        {"input": [101, -1]},
        {"input": [2**31]},
        {"input": [101, VOCAB_SIZE, 102]},
        {"input": [101] * (MAX_LENGTH + 1)},
        {"input": "tea", "encoding_format": "base16"},
        {"input": "tea", "dimensions": 0},
        {"input": "tea", "input_typ": "query"},
        {"input": "tea", "prompt_name": "query"},
        [],
        "tea",
        None,
    ],
)
def test_what_cannot_be_served_is_the_senders_fault(gateway: httpx.Client, body: Any) -> None:
    content = '{"input": "\\ud800"}' if body == {"input": "\ud800"} else None
    headers = {"content-type": "application/json"}
    answer = (
        gateway.post("/v1/embeddings", content=content, headers=headers)
        if content
        else gateway.post("/v1/embeddings", json=body)
    )
    assert _openai_error(answer)
    assert gateway.post("/v1/embeddings", json={"input": "tea"}).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"input": "\xff"}', b'{"input": ' + b"[" * 100_000])
def test_what_is_no_json_is_the_senders_fault(gateway: httpx.Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert _openai_error(gateway.post("/v1/embeddings", content=content, headers=headers))


def test_messages_name_field_and_limit(gateway: httpx.Client) -> None:
    def message(**fields: Any) -> str:
        return _openai_error(gateway.post("/v1/embeddings", json=fields))

    assert "a list of token ids" in message(input=["tea", 5])
    assert message(input=["tea", "stone " * 300], truncate=False) == (
        "input[1] has 302 tokens: the limit is 256, and parameter 'truncate' is false"
    )
    assert "limit is 256" in message(input=[101] * 257)
    assert message(input=["tea"] * 4097) == "input holds 4097 inputs: the limit is 4096 a request"
    assert message(input="tea", input_typ="x") == "input_typ is not known"
    assert "has no int8 vectors" in message(input="tea", encoding_format="base64_int8")  # no ranges were measured


def test_packed_bits(gateway: httpx.Client, oracle: Oracle) -> None:
    signs = oracle.vectors([HARBOUR, "tea"]) > 0
    packed = _vectors(gateway, [HARBOUR, "tea"], encoding_format="base64_binary")
    assert [base64.b64decode(row) for row in packed] == [
        row.tobytes() for row in np.packbits(signs, axis=1, bitorder="little")
    ]
    body = {"texts": [HARBOUR, "tea"], "input_type": "search_document", "embedding_types": ["ubinary"]}
    found = gateway.post("/v2/embed", json=body).json()["embeddings"]["ubinary"]
    assert found == np.packbits(signs, axis=1).tolist()


def test_long_texts_are_cut_and_counted(gateway: httpx.Client, oracle: Oracle) -> None:
    reply = _embeddings(gateway, ["stone " * 600])
    assert reply["usage"]["prompt_tokens"] == MAX_LENGTH
    assert_close(reply["data"][0]["embedding"], oracle.vector("stone " * 254))


def test_many_texts_come_back_in_order(gateway: httpx.Client, oracle: Oracle) -> None:
    """More than a chunk holds."""
    texts = make_texts(20, longest=8, seed=3)
    assert_close(_vectors(gateway, texts * 20), np.tile(oracle.vectors(texts), (20, 1)))


def test_models(gateway: httpx.Client) -> None:
    listed = gateway.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["embed"]
    assert gateway.get("/v1/models/embed").json()["object"] == "model"
    assert "'nothing'" in _openai_error(gateway.get("/v1/models/nothing"), 404)
    answer = gateway.post("/v1/embeddings", json={"input": "tea", "model": "rose"})
    assert _openai_error(answer, 404) == "model 'rose' does not exist; known: ['embed']"


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_tei_embed(gateway: httpx.Client, oracle: Oracle, path: str) -> None:
    answer = gateway.post(path, json={"inputs": "tea", "unheard_of": 1})
    assert_close(answer.json(), oracle.vectors(["tea"]))
    assert answer.headers["x-compute-characters"] == "3"
    assert answer.headers["x-compute-tokens"] == "3"
    assert int(answer.headers["x-total-time"]) >= int(answer.headers["x-inference-time"]) >= 0
    assert_close(gateway.post(path, json={"inputs": [list(TEA_IDS)]}).json(), oracle.vectors(["tea"]))


def test_tei_options(gateway: httpx.Client, oracle: Oracle) -> None:
    long = "tractor " * 100 + "violin " * 254
    left = {"inputs": [long], "truncation_direction": "Left", "truncate": True}
    assert_close(gateway.post("/embed", json=left).json(), oracle.vectors(["violin " * 254]))
    plain = gateway.post("/embed", json={"inputs": "tea", "normalize": False}).json()
    assert_close(plain[0], oracle.unnormalized("tea"), tolerance=1e-4)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": []}, 400, "Empty"),
        ({"inputs": "stone " * 300, "truncate": False}, 422, "Validation"),
        ({"inputs": ["tea", 5]}, 422, "Validation"),
        ({}, 422, "Validation"),
    ],
)
def test_tei_errors(gateway: httpx.Client, body: Any, status: int, kind: str) -> None:
    answer = gateway.post("/embed", json=body)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == kind


def test_tei_token_vectors(gateway: httpx.Client, oracle: Oracle) -> None:
    found = gateway.post("/embed_all", json={"inputs": [HARBOUR, "tea"]}).json()
    for text, vectors in zip([HARBOUR, "tea"], found, strict=True):
        assert_close(vectors, oracle.model.encode(text, output_value="token_embeddings").cpu().numpy())
    assert len(gateway.post("/embed_all", json={"inputs": "tea"}).json()) == 1


def test_tei_weights_that_no_model_here_has(gateway: httpx.Client) -> None:
    answer = gateway.post("/embed_sparse", json={"inputs": "tea"})
    assert answer.status_code == 424
    assert answer.json()["error_type"] == "Backend"
    assert "has no sparse vectors: its checkpoint has no head for them" in answer.json()["error"]


def test_documents_in_chunks(gateway: httpx.Client, oracle: Oracle) -> None:
    path, documents = "/v1/contextualizedembeddings", [["Tides turn twice", " a day at the harbour wall."], ["tea"]]
    body = {"input": documents, "encoding_format": "float", "late_chunking": True}
    reply = gateway.post(path, json=body).json()
    assert [(entry["object"], entry["index"]) for entry in reply["data"]] == [("list", 0), ("list", 1)]
    assert [[entry["index"] for entry in document["data"]] for document in reply["data"]] == [[0, 1], [0]]
    hidden = oracle.model.encode("".join(documents[0]), output_value="token_embeddings").cpu().numpy()
    means = np.stack([hidden[:4].mean(0), hidden[4:].mean(0)])  # [CLS] tides turn twice | ...
    found = [[entry["embedding"] for entry in document["data"]] for document in reply["data"]]
    assert_close(found[0], means / np.linalg.norm(means, axis=1, keepdims=True))
    assert_close(found[1], oracle.vectors(["tea"]))
    assert reply["usage"]["prompt_tokens"] == len(hidden) + 3
    assert "not trained on documents in chunks" in _openai_error(
        gateway.post(path, json={"input": documents, "encoding_format": "float"})
    )
    for value, words in (([], "input is empty"), ([["tea"], []], "input[1] is empty"), (["tea"], "input.0")):
        assert words in _openai_error(gateway.post(path, json={"input": value}))


def _cosines(oracle: Oracle, query: str, documents: list[str]) -> np.ndarray:
    return oracle.vectors(documents) @ oracle.vector(query)


def test_tei_rerank(gateway: httpx.Client, oracle: Oracle) -> None:
    answer = gateway.post("/rerank", json={"query": "tea", "texts": _DOCUMENTS, "return_text": True})
    assert answer.headers["x-scoring"] == "cosine"
    assert [(entry["index"], entry["text"]) for entry in answer.json()] == [
        (2, "tea"),
        (0, _DOCUMENTS[0]),
        (1, _DOCUMENTS[1]),
    ]
    expected = _cosines(oracle, "tea", _DOCUMENTS)
    assert_close([entry["score"] for entry in answer.json()], expected[[2, 0, 1]])
    assert "text" not in gateway.post("/rerank", json={"query": "tea", "texts": ["pot"]}).json()[0]
    assert gateway.post("/rerank", json={"query": "tea", "texts": []}).status_code == 400


def test_tei_similarity(gateway: httpx.Client, oracle: Oracle) -> None:
    body = {"inputs": {"source_sentence": "tea", "sentences": _DOCUMENTS}}
    assert_close(gateway.post("/similarity", json=body).json(), _cosines(oracle, "tea", _DOCUMENTS))


def test_tei_tokenize(gateway: httpx.Client) -> None:
    assert gateway.post("/tokenize", json={"inputs": "Green tea"}).json() == [
        [
            {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
            {"id": 2665, "text": "Green", "special": False, "start": 0, "stop": 5},
            {"id": 5572, "text": "tea", "special": False, "start": 6, "stop": 9},
            {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None},
        ]
    ]
    bare = gateway.post("/tokenize", json={"inputs": ["tea", "pot"], "add_special_tokens": False}).json()
    assert [[token["id"] for token in tokens] for tokens in bare] == [[5572], [8962]]
    assert gateway.post("/tokenize", json={"inputs": "tea", "prompt_name": "query"}).status_code == 422


def test_tei_info(gateway: httpx.Client) -> None:
    info = gateway.get("/info").json()
    assert info["served_model_name"] == "embed"
    assert info["max_input_length"] == MAX_LENGTH
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_client_batch_size"] == 4096


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank(gateway: httpx.Client, oracle: Oracle, path: str) -> None:
    answer = gateway.post(path, json={"model": "embed", "query": "tea", "documents": _DOCUMENTS, "top_n": 2})
    reply = answer.json()
    assert [entry["index"] for entry in reply["results"]] == [2, 0]
    scores = [entry["relevance_score"] for entry in reply["results"]]
    assert_close(scores, _cosines(oracle, "tea", _DOCUMENTS)[[2, 0]])
    assert reply["meta"]["scoring"] == "cosine"
    expected = sum(oracle.token_count(text) for text in ["tea", *_DOCUMENTS])
    assert reply["usage"] == {"total_tokens": expected}


_BOATS = {"model": "embed", "query": "boats in port"}
_FOUR = ["Ships rest in the harbour.", "Bread needs yeast.", "A kettle boils water.", "Bread needs yeast."]


@pytest.mark.parametrize("top_n", [None, 1, 4, 9])
def test_ranks_lead_to_the_original_places(gateway: httpx.Client, top_n: int | None) -> None:
    """Of equal documents the first comes first; scores are MiniLM's cosines, printed to four decimals."""
    body = {**_BOATS, "documents": _FOUR, "top_n": top_n}
    results = gateway.post("/v1/rerank", json={key: value for key, value in body.items() if value is not None}).json()[
        "results"
    ]
    assert [entry["index"] for entry in results] == [0, 2, 1, 3][:top_n]
    scores = [0.6725, 0.0670, -0.0508, -0.0508][:top_n]
    assert_close([entry["relevance_score"] for entry in results], scores, 1e-4)


@pytest.mark.parametrize(
    "values", [{"documents": _FOUR, "top_n": 0}, {"documents": _FOUR, "top_n": -1}, {"documents": []}], ids=str
)
def test_reranking_that_cannot_be_meant(gateway: httpx.Client, values: dict[str, Any]) -> None:
    assert gateway.post("/v1/rerank", json={**_BOATS, **values}).status_code == 400


def test_an_empty_document_is_ranked_too(gateway: httpx.Client) -> None:
    results = gateway.post("/v1/rerank", json={**_BOATS, "documents": ["", *_FOUR]}).json()["results"]
    assert sorted(entry["index"] for entry in results) == [0, 1, 2, 3, 4]
    assert results[0]["index"] == 1


def test_rerank_returns_documents(gateway: httpx.Client) -> None:
    body = {"query": "tea", "documents": ["pot", {"text": "tea"}], "return_documents": True}
    results = gateway.post("/v1/rerank", json=body).json()["results"]
    assert [entry["document"] for entry in results] == [{"text": "tea"}, {"text": "pot"}]
    refused = gateway.post("/v2/rerank", json=body)
    assert refused.status_code == 400
    assert set(refused.json()) == {"message"}


def test_cohere_embed(gateway: httpx.Client, oracle: Oracle) -> None:
    body = {"model": "embed", "texts": ["tea", "pot"], "input_type": "search_document"}
    reply = gateway.post("/v2/embed", json={**body, "embedding_types": ["float", "base64"]}).json()
    assert_close(reply["embeddings"]["float"], oracle.vectors(["tea", "pot"]))
    assert_close(
        np.frombuffer(base64.b64decode(reply["embeddings"]["base64"][1]), "<f4"), reply["embeddings"]["float"][1]
    )
    assert reply["texts"] == ["tea", "pot"]
    assert reply["meta"]["billed_units"] == {"input_tokens": 6}
    assert list(gateway.post("/v2/embed", json=body).json()["embeddings"]) == ["float"]
    for kind in ("int8", "uint8"):
        refused = gateway.post("/v2/embed", json={**body, "embedding_types": [kind]})
        assert refused.status_code == 400
        assert "has no int8 vectors" in refused.json()["message"]


@pytest.mark.parametrize(("truncate", "kept"), [("END", "tractor " * 254), ("START", "violin " * 254), ("NONE", None)])
def test_cohere_truncation(gateway: httpx.Client, oracle: Oracle, truncate: str, kept: str | None) -> None:
    text = "tractor " * 254 + "violin " * 254
    body = {"texts": [text], "input_type": "search_query", "truncate": truncate}
    answer = gateway.post("/v2/embed", json=body)
    if kept is None:
        assert answer.status_code == 400
        assert answer.json()["message"].startswith("texts[0] has 510 tokens: the limit is 256")
    else:
        assert_close(answer.json()["embeddings"]["float"], oracle.vectors([kept]))


def test_health_and_metrics(gateway: httpx.Client) -> None:
    assert gateway.get("/health/live").json() == {"status": "live"}
    for path in ("/health", "/health/ready", "/ping"):
        assert gateway.get(path).json() == {"embed": "ready"}
    gateway.post("/embed", json={"inputs": "tea"})
    page = gateway.get("/metrics").text
    assert 'rose_gateway_requests_total{route="/embed",status="200"}' in page
    assert 'rose_gateway_request_seconds_bucket{le="+Inf",route="/embed"}' in page


def test_every_route_is_documented(gateway: httpx.Client) -> None:
    paths = gateway.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        *(
            "/v1/embeddings",
            "/v1/contextualizedembeddings",
            "/v1/models",
            "/v1/models/{model}",
            "/v1/rerank",
            "/v2/rerank",
            "/v2/embed",
        ),
        *("/embed", "/embed_all", "/embed_sparse", "/rerank", "/similarity", "/tokenize", "/info"),
        *("/health", "/health/live", "/health/ready", "/metrics", "/status.json"),
    }
    assert "swagger" in gateway.get("/docs").text.lower()
    assert gateway.get("/nothing").json()["error"]["code"] == "not_found"
    assert gateway.get("/v1/embeddings").status_code == 405


def test_dimensions_are_passed_on(gateway: httpx.Client, oracle: Oracle) -> None:
    """A server that knows no such parameter says so; one that does cuts the vector and scales it again."""
    answer = gateway.post("/v1/embeddings", json={"input": "tea", "dimensions": 64})
    if answer.status_code == 400:
        assert "dimensions" in _openai_error(answer)
    else:
        cut = oracle.vector("tea")[:64]
        assert_close(answer.json()["data"][0]["embedding"], cut / np.linalg.norm(cut))


def test_status(gateway: httpx.Client) -> None:
    """The engine's counters come with the server's metrics, twice a second."""
    gateway.post("/embed", json={"inputs": "tea"})
    status = gateway.get("/status.json").json()
    assert [model["name"] for model in status["models"]] == ["embed"]
    assert status["routes"]["/embed"]["requests"] >= 1
    assert status["routes"]["/embed"]["tokens"] >= 3
    wait_until(
        lambda: gateway.get("/status.json").json()["servers"][0]["engines"]["rose"]["tokens"] >= 3, "it has run tokens"
    )
    [server] = gateway.get("/status.json").json()["servers"]
    assert server["error"] is None
    assert server["engines"]["rose"]["queued_requests"] == 0


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
@pytest.mark.parametrize(("hash_", "shown"), [("embed", "1.000"), ("rerank", "cosine")])
@pytest.mark.slow
def test_status_page_in_a_browser(gateway: httpx.Client, tmp_path: Path, hash_: str, shown: str) -> None:
    url = f"{str(gateway.base_url).rstrip('/')}/status#{hash_}"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=5000",
    ]
    done = subprocess.run(
        ["chromium", *options, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True
    )
    page = done.stdout
    assert re.search(r'id="state">as of ', page), page[-3000:]
    assert re.search(r"<td>embed</td><td>embed</td><td>EMBEDDING, [A-Z0-9_, ]*TOKEN_COUNT[A-Z_, ]*</td>", page)
    assert "rose @ " in page
    result = page[page.index('id="result"') :]
    assert shown in result
    assert "The ferry leaves the harbour at dawn." in result


def test_requests_that_travel_together_get_what_they_would_alone(server: Endpoints) -> None:
    """Of all options at once; one bad request among those it travels with fails alone."""
    texts = make_texts(16, longest=15, seed=7)
    bodies: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        bodies += [
            {"input": text},
            {"input": [text, texts[index - 1]], "encoding_format": "base64"},
            {"input": text, "normalize": False},
            {"input": text, "truncate": False},
            {"input": TEA_IDS if index % 2 else POT_IDS},
        ]
    bad = [{"input": "tea " * 300, "truncate": False}, {"input": [101, VOCAB_SIZE, 102]}]
    mixed = [*bodies[:40], *bad, *bodies[40:]]

    def post(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
        return client.post("/v1/embeddings", json=body)

    with running_gateway(server.grpc, merging=None) as alone, ThreadPoolExecutor(4) as pool:
        expected = list(pool.map(lambda body: post(alone, body), mixed))
    policy = MergePolicy(calls_per_server=1, longest_wait=0.2)
    with running_gateway(server.grpc, merging=policy) as together, ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda body: post(together, body), mixed))
        page = together.get("/metrics").text
    for body, answer, other in zip(mixed, answers, expected, strict=True):
        assert answer.status_code == other.status_code == (400 if body in bad else 200)
        if body in bad:
            assert answer.json() == other.json()
            continue
        assert answer.json()["usage"] == other.json()["usage"]
        assert_close(_rows(answer), _rows(other))
    calls = int(float(re.findall(r"^rose_gateway_requests_per_call_count (\S+)", page, re.MULTILINE)[0]))
    assert calls < len(mixed) * 0.8
    assert float(re.findall(r"^rose_gateway_calls_parted_total (\S+)", page, re.MULTILINE)[0]) >= 1


def _rows(answer: httpx.Response) -> Any:
    rows = [entry["embedding"] for entry in answer.json()["data"]]
    return [np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row for row in rows]
