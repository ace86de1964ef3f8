"""The tokenize step: one call for many requests, each with its own prompt, shape and error."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rose_backend.config import HeadConfig
from rose_backend.core import Field
from rose_backend.errors import InvalidArgumentError
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.score_step import ScoreInput
from rose_ensemble.texts import TextLimits, TokenInput
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep

TEA, POT = 5572, 8962  # "tea" and "pot"


@pytest.fixture(scope="module")
def step(minilm: Path) -> TokenizeStep:
    """MiniLM cut to 5 tokens, with two prompts."""
    checkpoint = replace(read_checkpoint(minilm), max_length=5, prompts={"query": "tea ", "document": ""})
    return TokenizeStep(checkpoint, TextLimits())


def texts(*content: str, shape: tuple[int, int] | None = None, **options: object) -> TokenizeInput:
    return TokenizeInput(list(content), shape or (1, len(content)), RequestOptions(**options), 7)


def token_ids(*sequences: list[int], **options: object) -> TokenizeInput:
    ids = np.array([token for sequence in sequences for token in sequence], np.int32)
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    return TokenizeInput(TokenInput(ids, lengths), (1, len(sequences)), RequestOptions(**options), 7)


def run_one(step: TokenizeStep, request: TokenizeInput) -> TokenizeOutput:
    (output,) = step.run([request])
    assert isinstance(output, TokenizeOutput), output
    return output


def refusal(step: TokenizeStep, request: TokenizeInput) -> str:
    (output,) = step.run([request])
    assert isinstance(output, InvalidArgumentError)
    return str(output)


def test_texts_become_ragged_ids(step: TokenizeStep) -> None:
    output = run_one(step, texts("tea", "", "tea pot", shape=(3, 1)))
    assert output.work.input_ids.tolist() == [101, TEA, 102, 101, 102, 101, TEA, POT, 102]
    assert output.work.lengths.tolist() == [3, 2, 4]
    assert (output.work.shape, output.work.stamp) == ((3, 1), 7)
    assert output.token_count.tolist() == [[3], [2], [4]]
    assert {array.dtype for array in (output.work.input_ids, output.work.lengths)} == {np.dtype(np.int32)}


def test_counts_are_those_after_truncation(step: TokenizeStep) -> None:
    output = run_one(step, texts("tea tea tea pot pot"))
    assert output.work.input_ids.tolist() == [101, TEA, TEA, TEA, 102]
    assert output.token_count.tolist() == [[5]]
    assert run_one(step, texts("tea tea tea pot pot", truncation_direction="left")).work.input_ids.tolist() == [
        101,
        TEA,
        POT,
        POT,
        102,
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [101, POT, 102]),
        ({"input_type": "query"}, [101, TEA, POT, 102]),
        ({"input_type": "document"}, [101, POT, 102]),
        ({"prompt_name": "query"}, [101, TEA, POT, 102]),
        ({"prompt": "pot tea "}, [101, POT, TEA, POT, 102]),
    ],
)
def test_prompts_go_in_front(step: TokenizeStep, options: dict[str, str], expected: list[int]) -> None:
    assert run_one(step, texts("pot", **options)).work.input_ids.tolist() == expected


def test_the_default_prompt_applies_where_none_is_named(step: TokenizeStep) -> None:
    other = TokenizeStep(replace(step.checkpoint, default_prompt_name="query"), TextLimits())
    assert run_one(other, texts("pot")).work.input_ids.tolist() == [101, TEA, POT, 102]
    assert run_one(other, token_ids([POT])).work.input_ids.tolist() == [POT]


def test_a_prompt_is_plain_concatenation(step: TokenizeStep) -> None:
    assert (
        run_one(step, texts("pot", prompt="tea")).work.input_ids.tolist()
        == run_one(step, texts("teapot")).work.input_ids.tolist()
    )


@pytest.fixture(scope="module")
def unpooled(step: TokenizeStep) -> TokenizeStep:
    """A checkpoint that leaves prompts out of pooling, cut to 6 tokens; `tea ` is the query prompt."""
    head = HeadConfig(include_prompt=False)
    return TokenizeStep(replace(step.checkpoint, head=head, max_length=6), TextLimits())


def skipped(step: TokenizeStep, request: TokenizeInput) -> dict[Field, list[int]]:
    return {name: values.tolist() for name, values in run_one(step, request).work.fields.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"prompt": ""}, {}),
        ({"input_type": "document"}, {}),  # an empty prompt
        ({"input_type": "query"}, {Field.POOL_FROM: [2, 2]}),  # [CLS] tea
        ({"prompt": "pot tea "}, {Field.POOL_FROM: [3, 3]}),
        ({"prompt": "tea [SEP]"}, {Field.POOL_FROM: [3, 3]}),  # one special token at the end is not counted
        ({"prompt": "tea pot " * 9}, {Field.POOL_FROM: [5, 5]}),  # as long as a text may be
        ({"prompt": "tea ", "truncation_direction": "left"}, {Field.POOL_FROM: [2, 1]}),  # [CLS] pot, ...
    ],
)
def test_prompts_that_are_not_pooled(
    unpooled: TokenizeStep, options: dict[str, str], expected: dict[Field, list[int]]
) -> None:
    assert skipped(unpooled, texts("pot", "pot tea pot tea", **options)) == expected


def test_prompts_that_are_pooled_are_not_counted(step: TokenizeStep, unpooled: TokenizeStep) -> None:
    assert skipped(step, texts("pot", input_type="query")) == {}
    assert skipped(unpooled, token_ids([7])) == {}


def test_token_ids_get_no_special_tokens(step: TokenizeStep) -> None:
    output = run_one(step, token_ids([7], [101, 9, 102]))
    assert output.work.input_ids.tolist() == [7, 101, 9, 102]
    assert [output.work.lengths.tolist()] == output.token_count.tolist() == [[1, 3]]


def test_token_ids_are_never_truncated(step: TokenizeStep) -> None:
    assert run_one(step, token_ids([1, 2, 3, 4, 5])).work.lengths.tolist() == [5]
    assert "holds 6: the limit is 5 tokens" in refusal(step, token_ids([1], [1, 2, 3, 4, 5, 6]))


@pytest.mark.parametrize(
    "option", [{"prompt": "tea "}, {"prompt": ""}, {"prompt_name": "query"}, {"input_type": "query"}]
)
def test_token_ids_take_no_prompt(step: TokenizeStep, option: dict[str, str]) -> None:
    assert "TOKEN_IDS are used as they are" in refusal(step, token_ids([1], **option))


def test_too_long_without_truncation(step: TokenizeStep) -> None:
    assert "element 1 has 6 tokens: the limit is 5" in refusal(step, texts("tea", "tea tea tea pot", truncate=False))


def test_a_prompt_counts_towards_the_limit(step: TokenizeStep) -> None:
    assert "has 6 tokens" in refusal(step, texts("tea tea pot", prompt_name="query", truncate=False))


def test_a_prompt_is_limited_with_all_its_texts(step: TokenizeStep) -> None:
    """So that a small message cannot become gigabytes."""
    narrow = TokenizeStep(step.checkpoint, TextLimits(max_bytes=40))
    assert run_one(narrow, texts(*["tea"] * 4, prompt="tea a pot ")).work.lengths.tolist() == [5] * 4
    expected = "the prompt, repeated for 4 texts, has 44 characters: the limit is 40 in one request"
    assert refusal(narrow, texts(*["tea"] * 4, prompt="tea tea pot")) == expected


def test_a_document_has_its_prompt_once(step: TokenizeStep) -> None:
    """However many chunks it has."""
    narrow = TokenizeStep(replace(step.checkpoint, max_length=20), TextLimits(max_bytes=40))
    options = RequestOptions(prompt="tea tea pot ", late_chunking=True)

    def chunked(*counts: int) -> TokenizeInput:
        return TokenizeInput(["tea"] * 4, (1, 4), options, 7, np.array(counts, np.int32))

    assert run_one(narrow, chunked(4)).work.lengths.tolist() == [9]
    assert "repeated for 4 texts, has 48 characters" in refusal(narrow, chunked(1, 1, 1, 1))


def test_what_is_to_be_tokenized_counts_with_its_prompts() -> None:
    assert texts("tea", "teapot").num_characters == 9
    assert texts("tea", "teapot", prompt="a pot ").num_characters == 9 + 2 * 6
    assert token_ids([1, 2, 3]).num_characters == 0
    assert ScoreInput("pot", ["tea", "teapot"], RequestOptions(), 7).num_characters == 9 + 2 * 3
    with_instruction = ScoreInput("pot", ["tea", "teapot"], RequestOptions(instruction="find"), 7)
    assert with_instruction.num_characters == 9 + 2 * (3 + 4)


def test_an_error_keeps_nothing_of_its_request(step: TokenizeStep) -> None:
    """Whose memory is shared with the server, and is not to wait for the garbage collector."""
    gc.disable()
    try:
        requests = [texts("pot", prompt_name="unknown"), texts("tea tea tea pot", truncate=False), token_ids([1] * 6)]
        refused = [weakref.ref(request) for request in requests]
        outcomes = step.run(requests)
        del requests
        assert [type(outcome) for outcome in outcomes] == [InvalidArgumentError] * 3
        assert [request() for request in refused] == [None] * 3
    finally:
        gc.enable()


def test_good_requests_are_untouched_by_bad_ones(step: TokenizeStep) -> None:
    requests = [
        texts("tea"),
        texts("pot", prompt_name="unknown"),
        texts("tea tea tea pot", truncate=False),
        token_ids([9, 8]),
        token_ids([1, 2, 3, 4, 5, 6]),
        token_ids([1], prompt="tea "),
        texts("pot", "tea", input_type="query", shape=(2, 1)),
    ]
    outputs = step.run(requests)
    good = {index: output for index, output in enumerate(outputs) if isinstance(output, TokenizeOutput)}
    assert sorted(good) == [0, 3, 6]
    assert all(isinstance(outputs[index], InvalidArgumentError) for index in (1, 2, 4, 5))
    assert good[0].work.input_ids.tolist() == [101, TEA, 102]
    assert good[3].work.input_ids.tolist() == [9, 8]
    assert good[6].work.input_ids.tolist() == [101, TEA, POT, 102, 101, TEA, TEA, 102]
    assert good[6].token_count.tolist() == [[4], [4]]


def test_only_token_ids_and_nothing_at_all(step: TokenizeStep) -> None:
    assert step.run([]) == []
    assert run_one(step, token_ids([3])).work.input_ids.tolist() == [3]
