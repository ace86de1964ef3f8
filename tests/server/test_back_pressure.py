"""A full queue refuses at once, in words, and forgets nothing; case B16 against our own limit."""

from __future__ import annotations

import collections
import concurrent.futures
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.gateways import running_gateway
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.serving import Serving, serving
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.wire import text_input

pytestmark = pytest.mark.alone

_MOST = 6


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server whose queue holds six requests."""
    folder: Path = tmp_path_factory.mktemp("narrow")
    with serving(folder, "--device=cpu", f"--max-queued-requests={_MOST}", "--token-budget=64") as server:
        yield server


def _embed(url: str, texts: list[str]) -> Any:
    with grpcclient.InferenceServerClient(url) as client:
        try:
            return client.infer("embed", [text_input(grpcclient, texts)], client_timeout=100).as_numpy("EMBEDDING")
        except InferenceServerException as error:
            return error


def test_two_hundred_at_once(narrow: Serving, oracle: Oracle) -> None:
    """Every request is answered, right or refused; a text of 240 tokens is more than a batch's budget."""
    texts = make_texts(200, longest=200, seed=31)
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        outcomes = list(pool.map(lambda text: _embed(narrow.grpc, [text]), texts))
    refused = [outcome for outcome in outcomes if isinstance(outcome, InferenceServerException)]
    served = [(text, out) for text, out in zip(texts, outcomes, strict=True) if not isinstance(out, Exception)]
    assert len(refused) + len(served) == 200
    assert refused
    assert len(served) > _MOST
    for error in refused:
        assert "UNAVAILABLE" in str(error.status())
        found = re.search(r"the queue is full: \d+ of \d+ tokens and (\d+) of 6 requests wait", str(error.message()))
        assert found is not None, error
        assert int(found[1]) >= _MOST
    for text, vectors in served[:20]:
        assert_close(vectors[0, 0], oracle.vector(text))
    page = Counters(f"http://{narrow.metrics}/metrics").page()
    assert page.read("rose_queued_requests") == 0
    assert page.read("rose_queued_tokens") == 0
    unread = page.read("rose_tokenize_refused_total")
    queued = page.read("rose_refused_requests_total", reason="UNAVAILABLE")
    assert unread + queued == len(refused)
    assert unread > 0  # most are refused before they are tokenized


def test_over_http_it_is_503(narrow: Serving) -> None:
    """Small requests among many that fill the queue."""
    url = f"http://{narrow.http}/v2/models/embed/infer"
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["tea"]}
    body = json.dumps({"inputs": [tensor]}).encode()

    def post(_: int) -> tuple[int, str]:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=100) as answer:
                return int(answer.status), ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        filling = [pool.submit(_embed, narrow.grpc, [text]) for text in make_texts(120, longest=200, seed=32)]
        answers = list(pool.map(post, range(120)))
        for task in filling:
            task.result()
    assert {status for status, _ in answers} <= {200, 503}
    refusals = [text for status, text in answers if status == 503]
    assert refusals
    assert all("the queue is full" in text for text in refusals)


def test_the_next_request_is_served(narrow: Serving, oracle: Oracle) -> None:
    vectors = _embed(narrow.grpc, ["tea"])
    assert not isinstance(vectors, Exception)
    assert_close(vectors[0, 0], oracle.vector("tea"))


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.slow
def test_through_the_gateway_it_is_429(narrow: Serving, oracle: Oracle, as_list: bool) -> None:
    """Every request is answered, right or refused with a time to come back; strings and lists alike."""
    texts = make_texts(200, longest=200, seed=37)

    with running_gateway(narrow.grpc) as gateway, concurrent.futures.ThreadPoolExecutor(100) as pool:

        def post(text: str) -> httpx.Response:
            return gateway.post("/v1/embeddings", json={"model": "embed", "input": [text] if as_list else text})

        answers = list(pool.map(post, texts))
    statuses = collections.Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    assert statuses[200] > _MOST
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert "the queue is full" in answer.json()["error"]["message"]
    served = [(text, answer) for text, answer in zip(texts, answers, strict=True) if answer.status_code == 200]
    for text, answer in served[:5]:
        assert_close(answer.json()["data"][0]["embedding"], oracle.vector(text))
    assert Counters(f"http://{narrow.metrics}/metrics").read("rose_queued_requests") == 0
