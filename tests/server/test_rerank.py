"""Rerankers behind a real server: a cross-encoder and a language model with a template, through every way in."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rose_client import AsyncRoseClient, ChunkLimits, RequestError, RoseClient
from tests.support.processes import rose_command
from tests.support.rerankers import (
    QUERY,
    library_logits,
    library_scores,
    make_bert_reranker,
    make_qwen_reranker,
    qwen_logits,
    template_ids,
    word_tokenizer,
)
from tests.support.serving import Serving, serving
from tests.support.vectors import assert_close

_FOUR = ["Ships rest in the harbour.", "Bread needs yeast.", "A kettle boils water.", "Bread needs yeast."]
_MANY = [f"{text} {number}" for number in range(8) for text in _FOUR] + [""]
_LONG_QUERY = "harbour " * 300
_TWENTY = "tea " * 20


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    return make_bert_reranker(tmp_path_factory.mktemp("rank"), minilm, max_position_embeddings=256)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen_reranker(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, rank: Path, judge: Path) -> Iterator[Serving]:
    options = [f"--checkpoint={rank}", "--name=rank", f"--checkpoint={judge}", "--name=judge"]
    with serving(tmp_path_factory.mktemp("serve"), *options, "--probe-interval=600") as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[RoseClient]:
    with RoseClient(served.grpc, model="rank") as client:
        yield client


@pytest.fixture(scope="module")
def right(rank: Path) -> npt.NDArray[np.float32]:
    """Logits of `_MANY`."""
    return library_logits(rank, QUERY, _MANY)


def test_scores_are_the_librarys(client: RoseClient, rank: Path, right: npt.NDArray[np.float32]) -> None:
    found = client.score(QUERY, _MANY)
    assert_close(found.logits, right)
    assert_close(found.scores, library_scores(rank, QUERY, _MANY))
    assert found.token_counts[-1] == 6  # [CLS] boats in port [SEP] [SEP]
    raw = client.score(QUERY, _MANY, raw_scores=True)
    assert np.array_equal(raw.scores, raw.logits)


@pytest.mark.parametrize("top_n", [None, 1, 4, 9])
def test_ranks_lead_to_the_original_places(client: RoseClient, rank: Path, top_n: int | None) -> None:
    logits = library_logits(rank, QUERY, _FOUR)
    order = sorted(range(4), key=lambda index: (-round(float(logits[index]), 6), index))[:top_n]
    found = client.rerank(QUERY, _FOUR, top_n)
    assert [entry.index for entry in found] == order
    assert_close([entry.logit for entry in found], logits[order])


@pytest.mark.parametrize("top_n", [0, -1])
def test_a_top_n_that_cannot_be_meant(client: RoseClient, top_n: int) -> None:
    with pytest.raises(ValueError, match="top_n"):
        client.rerank(QUERY, _FOUR, top_n)


async def test_order_and_company_change_no_score(served: Serving, right: npt.NDArray[np.float32]) -> None:
    """1 or 33 documents, shuffled, in chunks of two, beside others' requests."""
    shuffled = list(range(len(_MANY)))
    random.Random(3).shuffle(shuffled)
    limits = ChunkLimits(max_texts=2)
    async with (
        AsyncRoseClient(served.grpc, model="rank") as whole,
        AsyncRoseClient(served.grpc, model="rank", limits=limits) as pieces,
    ):
        alone, mixed, split, _ = await asyncio.gather(
            asyncio.gather(*(whole.score(QUERY, [text]) for text in _MANY)),
            whole.score(QUERY, [_MANY[index] for index in shuffled]),
            pieces.rerank(QUERY, _MANY),
            whole.score(_LONG_QUERY, _MANY),
        )
    assert_close(np.concatenate([one.logits for one in alone]), right)
    assert_close(mixed.logits, right[shuffled])
    assert_close([entry.logit for entry in split], right[[entry.index for entry in split]])
    assert sorted(entry.index for entry in split) == list(range(len(_MANY)))


def test_a_long_query_is_cut_and_the_document_kept(client: RoseClient, rank: Path) -> None:
    documents = [_TWENTY, "", "tea " * 400]
    found = client.score(_LONG_QUERY, documents)
    assert found.token_counts.tolist() == [256, 256, 256]
    assert_close(found.logits, library_logits(rank, _LONG_QUERY, documents))
    with pytest.raises(RequestError, match="has, with the query, 323 tokens: the limit is 256"):
        client.score(_LONG_QUERY, [_TWENTY], truncate=False)


def test_a_language_model_with_its_template(served: Serving, judge: Path) -> None:
    words = word_tokenizer().get_vocab()
    with RoseClient(served.grpc, model="judge") as client:
        for task in (None, "Find recipes"):
            rows = [template_ids(judge, QUERY, text, *([task] if task else [])) for text in _FOUR]
            expected = qwen_logits(judge, rows, yes=words["yes"], no=words["no"])
            found = client.rerank(QUERY, _FOUR, instruction=task)
            assert_close([entry.logit for entry in found], expected[[entry.index for entry in found]])
            assert_close([entry.score for entry in found], 1 / (1 + np.exp(-expected[[e.index for e in found]])))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalize": True}, "parameter 'normalize' is not known"),
        ({"instruction": "Find recipes"}, "parameter 'instruction': this checkpoint takes none"),
        ({"raw_scores": "perhaps"}, "parameter 'raw_scores' is 'perhaps', not a boolean"),
    ],
)
def test_parameters_that_are_not_for_it(client: RoseClient, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        client.score(QUERY, _FOUR, **options)
    assert refused.value.status == "INVALID_ARGUMENT"


def _post(served: Serving, query: Sequence[str], documents: Sequence[str], shape: list[int]) -> tuple[int, Any]:
    inputs = [
        {"name": "QUERY", "datatype": "BYTES", "shape": [1, len(query)], "data": list(query)},
        {"name": "DOCUMENT", "datatype": "BYTES", "shape": shape, "data": list(documents)},
    ]
    body = json.dumps({"inputs": inputs}).encode()
    address = f"http://{served.http.removeprefix('http://')}/v2/models/rank/infer"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_over_http(served: Serving, right: npt.NDArray[np.float32]) -> None:
    status, answer = _post(served, [QUERY], _MANY, [1, len(_MANY)])
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert (status, sorted(outputs)) == (200, ["LOGIT", "SCORE", "TOKEN_COUNT"])
    assert_close(outputs["LOGIT"]["data"], right)


@pytest.mark.parametrize(
    ("query", "documents", "shape", "words"),
    [
        ([QUERY], [], [1, 0], "DOCUMENT has shape [1, 0]"),
        ([], ["tea"], [1, 1], "QUERY has shape [1, 0]"),
        ([QUERY, "tea"], ["tea"], [1, 1], "QUERY has shape [1, 2]"),
    ],
)
def test_what_cannot_be_meant(
    served: Serving, query: list[str], documents: list[str], shape: list[int], words: str
) -> None:
    status, answer = _post(served, query, documents, shape)
    assert status == 400
    assert words in answer["error"]


def test_the_command_line(served: Serving, client: RoseClient, tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.txt" for index in range(4)]
    for path, text in zip(files, _FOUR, strict=True):
        path.write_text(text)
    options = [f"--url={served.grpc}", "--model=rank", "--top-n=2"]
    done = subprocess.run(
        rose_command("rerank", QUERY, *map(str, files), *options),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = client.rerank(QUERY, _FOUR, 2)
    assert [line["index"] for line in found] == [entry.index for entry in expected]
    assert [line["document"] for line in found] == [str(files[entry.index]) for entry in expected]
    assert_close([line["logit"] for line in found], [entry.logit for entry in expected])
