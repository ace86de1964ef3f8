"""What the clients send, what they refuse to send, and how they translate errors."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from rose_client import EmbedOptions, RequestError
from rose_client.wire import infer_arguments

_NONE = EmbedOptions()


def _shape(texts: Any) -> list[int]:
    return list(infer_arguments("embed", texts, _NONE, 1.0)["inputs"][0].shape())


def test_texts_travel_as_one_row() -> None:
    assert _shape(["tea", "pot", ""]) == [1, 3]
    assert _shape(("tea",)) == [1, 1]


def test_options_travel_as_parameters() -> None:
    options = EmbedOptions(normalize=False, prompt="query: ")
    arguments = infer_arguments("bge", ["tea"], options, 2.5)
    assert arguments["parameters"] == {"normalize": False, "prompt": "query: "}
    assert arguments["model_name"] == "bge"
    assert arguments["client_timeout"] == 2.5


@pytest.mark.parametrize("texts", [[], ()])
def test_no_texts(texts: Any) -> None:
    with pytest.raises(ValueError, match="at least one text"):
        infer_arguments("embed", texts, _NONE, 1.0)


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        ("tea", "single string"),
        (["tea", 5], r"texts\[1\] is a int"),
        ([None], r"texts\[0\] is a NoneType"),
        ([["tea"]], r"texts\[0\] is a list"),
        ([b"tea"], r"texts\[0\] is a bytes"),
    ],
)
def test_what_is_no_list_of_strings(texts: Any, part: str) -> None:
    with pytest.raises(TypeError, match=part):
        infer_arguments("embed", texts, _NONE, 1.0)


@pytest.mark.parametrize(
    ("status", "expected"), [("StatusCode.UNAVAILABLE", "UNAVAILABLE"), ("400", "400"), (None, "UNKNOWN")]
)
def test_errors_keep_status_and_words(status: str | None, expected: str) -> None:
    error = RequestError.of(InferenceServerException("queue is full", status))
    assert (error.status, error.message) == (expected, "queue is full")
    assert str(error) == f"{expected}: queue is full"
