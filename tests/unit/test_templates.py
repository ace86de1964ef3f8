"""Which prompt a request gets, by the rules of sentence-transformers' `encode`, `encode_query`, `encode_document`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rose_backend.config import HeadConfig
from rose_backend.errors import InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.matryoshka import Matryoshka
from rose_ensemble.options import RequestOptions
from rose_ensemble.templates import prompt_for


def checkpoint(default: str | None = None, **prompts: str) -> Checkpoint:
    return Checkpoint(
        Path(), "bert", 100, HeadConfig(), 16, Matryoshka(8), prompts=prompts, default_prompt_name=default
    )


@pytest.mark.parametrize(
    ("prompts", "default", "options", "expected"),
    [
        ({}, None, {}, ""),
        ({"query": "q: "}, None, {}, ""),
        ({"query": "q: "}, "query", {}, "q: "),
        ({"query": "q: "}, "query", {"prompt": ""}, ""),
        ({"query": "q: "}, "query", {"prompt": "own: "}, "own: "),
        ({"query": "q: ", "sts": "s: "}, "query", {"prompt_name": "sts"}, "s: "),
        ({"query": "q: ", "document": "d: "}, None, {"input_type": "query"}, "q: "),
        ({"query": "q: ", "document": "d: "}, None, {"input_type": "document"}, "d: "),
        ({"passage": "p: ", "corpus": "c: "}, None, {"input_type": "document"}, "p: "),
        ({"corpus": "c: "}, None, {"input_type": "document"}, "c: "),
        ({"query": "q: "}, None, {"input_type": "document"}, ""),
        ({"sts": "s: "}, "sts", {"input_type": "query"}, ""),
        ({"sts": "s: "}, "sts", {"input_type": "document"}, ""),
        ({"query": ""}, None, {"input_type": "query"}, ""),
        ({"query": "", "sts": "s: "}, "sts", {"input_type": "query"}, ""),
    ],
)
def test_prompt(prompts: dict[str, str], default: str | None, options: dict[str, str], expected: str) -> None:
    assert prompt_for(checkpoint(default, **prompts), RequestOptions(**options)) == expected


def test_an_unknown_prompt_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'prompt_name' is 'doc'.*\['document', 'query'\]"):
        prompt_for(checkpoint(query="q: ", document="d: "), RequestOptions(prompt_name="doc"))
