"""Many requests in one tokenizer call: each gets its own tokens, or its own error."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rose_backend.errors import InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint, read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.texts import TextLimits, TokenInput
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep
from tests.support.cases import POT_IDS, TEA_IDS
from tests.support.checkpoints import copy_tokenizer, write_json

_NONE = RequestOptions()


@pytest.fixture(scope="module")
def checkpoint(minilm: Path) -> Checkpoint:
    prompts = {"query": "tea ", "passage": "pot "}
    return dataclasses.replace(read_checkpoint(minilm), prompts=prompts)


def _texts(*texts: str, shape: tuple[int, int] | None = None, options: RequestOptions = _NONE) -> TokenizeInput:
    return TokenizeInput(list(texts), shape or (1, len(texts)), options)


def _ids(*sequences: tuple[int, ...], options: RequestOptions = _NONE) -> TokenizeInput:
    flat = np.array([token for sequence in sequences for token in sequence], np.int32)
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    return TokenizeInput(TokenInput(flat, lengths), (1, len(sequences)), options)


def _run(checkpoint: Checkpoint, *requests: TokenizeInput) -> list[list[list[int]] | str]:
    """Each request's sequences, or its error's message."""
    outcomes = TokenizeStep(checkpoint, TextLimits()).run(requests)
    read: list[list[list[int]] | str] = []
    for outcome in outcomes:
        if isinstance(outcome, TokenizeOutput):
            ends = np.cumsum(outcome.lengths[0])
            read.append([part.tolist() for part in np.split(outcome.input_ids[0], ends[:-1])])
        else:
            assert isinstance(outcome, InvalidArgumentError)
            read.append(str(outcome))
    return read


def test_requests_stay_apart(checkpoint: Checkpoint) -> None:
    tea, pot = list(TEA_IDS), list(POT_IDS)
    requests = [_texts("tea"), _texts("pot", "", "tea"), _ids(POT_IDS), _texts("tea", "pot")]
    assert _run(checkpoint, *requests) == [[tea], [pot, [101, 102], tea], [pot], [tea, pot]]


def test_output_tensors(checkpoint: Checkpoint) -> None:
    [output] = TokenizeStep(checkpoint, TextLimits()).run([_texts("tea", "", "pot", "tea pot", shape=(2, 2))])
    assert isinstance(output, TokenizeOutput)
    assert output.input_ids.shape == (1, 12)
    assert output.lengths.tolist() == [[3, 2, 3, 4]]
    assert output.rows.tolist() == [[2, 2]]
    assert output.token_count.tolist() == [[3, 2], [3, 4]]
    tensors = (output.input_ids, output.lengths, output.rows, output.token_count)
    assert {tensor.dtype for tensor in tensors} == {np.dtype(np.int32)}


def test_prompts_go_in_front_of_every_text(checkpoint: Checkpoint) -> None:
    requests = [
        _texts("pot", "", options=RequestOptions(prompt_name="query")),
        _texts("tea", options=RequestOptions(input_type="document")),
        _texts("tea", options=RequestOptions(prompt="pot pot ")),
        _texts("tea"),
    ]
    tea, pot = TEA_IDS[1], POT_IDS[1]
    assert _run(checkpoint, *requests) == [
        [[101, tea, pot, 102], [101, tea, 102]],
        [[101, pot, tea, 102]],
        [[101, pot, pot, tea, 102]],
        [[101, tea, 102]],
    ]


def test_an_error_is_its_own_requests(checkpoint: Checkpoint) -> None:
    outcomes = _run(
        checkpoint,
        _texts("tea"),
        _texts("tea", options=RequestOptions(prompt_name="nothing")),
        _texts("stone " * 300, options=RequestOptions(truncate=False)),
        _ids((5,) * 257),
        _ids(TEA_IDS, options=RequestOptions(prompt="query: ")),
        _texts("pot"),
    )
    assert outcomes[0] == [list(TEA_IDS)]
    assert outcomes[5] == [list(POT_IDS)]
    for message, part in zip(outcomes[1:5], ("'nothing'", "302 tokens", "257: the limit is 256", "TEXT"), strict=True):
        assert part in message


def test_ids_are_never_truncated(checkpoint: Checkpoint) -> None:
    [message] = _run(checkpoint, _ids((5,) * 257))
    assert "never truncated" in message
    assert _run(checkpoint, _ids((5,) * 256)) == [[[5] * 256]]


def test_texts_that_cannot_be_tokenized_fail_alone(checkpoint: Checkpoint, minilm: Path, tmp_path: Path) -> None:
    """One call tokenizes many requests; a vocabulary without [UNK] makes it raise for all of them."""
    copy_tokenizer(minilm, tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    values["model"]["unk_token"] = "[nothing]"
    write_json(tmp_path / "tokenizer.json", values)
    poisoned = dataclasses.replace(checkpoint, folder=tmp_path)
    outcomes = _run(poisoned, _texts("tea"), _texts("tea", "\u2603"), _texts("pot", "tea"))
    assert outcomes[0] == [list(TEA_IDS)]
    assert "TEXT cannot be tokenized" in outcomes[1]
    assert outcomes[2] == [list(POT_IDS), list(TEA_IDS)]


def test_no_requests(checkpoint: Checkpoint) -> None:
    assert _run(checkpoint) == []
