"""Request parameters: names, types, spellings, and what excludes what."""

from __future__ import annotations

from typing import Any

import pytest

from rose_backend.errors import InvalidArgumentError
from rose_ensemble.options import RequestOptions


def test_no_parameters_are_the_defaults() -> None:
    options = RequestOptions.parse({})
    assert options == RequestOptions(None, None, None, None, truncate=True, truncation_direction=None)


@pytest.mark.parametrize(
    ("name", "given", "parsed"),
    [
        ("prompt_name", "query", "query"),
        ("prompt", "passage: ", "passage: "),
        ("prompt", "", ""),
        ("input_type", "query", "query"),
        ("input_type", "Document", "document"),
        ("normalize", True, True),
        ("normalize", False, False),
        ("normalize", "TRUE", True),
        ("normalize", "false", False),
        ("renormalize", "false", False),
        ("truncate", False, False),
        ("truncate", "False", False),
        ("truncate", "true", True),
        ("truncation_direction", "left", "left"),
        ("truncation_direction", "RIGHT", "right"),
        ("dimensions", 256, 256),
        ("dimensions", "64", 64),
        ("outputs", "int8", ("int8",)),
        ("outputs", "Binary, float,binary", ("binary", "float")),
        ("bit_order", "LSB", "lsb"),
    ],
)
def test_values(name: str, given: Any, parsed: Any) -> None:
    assert getattr(RequestOptions.parse({name: given}), name) == parsed


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("prompt_name", 1),
        ("prompt", True),
        ("prompt", 1.5),
        ("input_type", "passage"),
        ("input_type", ""),
        ("input_type", 0),
        ("dimensions", 0),
        ("outputs", ""),
        ("outputs", "int8,"),
        ("outputs", "int4"),
        ("outputs", 8),
        ("bit_order", "big"),
        ("dimensions", -1),
        ("dimensions", 2.5),
        ("dimensions", True),
        ("dimensions", "many"),
        ("dimensions", ""),
        ("normalize", 1),
        ("normalize", "yes"),
        ("truncate", 0),
        ("truncate", ""),
        ("truncation_direction", "middle"),
        ("truncation_direction", False),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        RequestOptions.parse({name: given})
    assert repr(name) in str(refusal.value)
    assert repr(given) in str(refusal.value)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'normalise' is not known.*'normalize'.*'truncate'"):
        RequestOptions.parse({"normalise": True})


def test_tracing_headers_pass() -> None:
    tracing = {"traceparent": "00-ab-cd-01", "tracestate": "a=b", "baggage": "c=d"}
    assert RequestOptions.parse(tracing) == RequestOptions()


@pytest.mark.parametrize("names", [("prompt_name", "prompt"), ("prompt_name", "input_type"), ("prompt", "input_type")])
def test_ways_to_choose_a_prompt_exclude_one_another(names: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="exclude one another") as refusal:
        RequestOptions.parse(dict.fromkeys(names, "query"))
    assert all(name in str(refusal.value) for name in names)


@pytest.mark.parametrize(("text", "normalize"), [("", None), ("{}", None), ('{"normalize": false}', False)])
def test_parameters_of_a_triton_request(text: str, normalize: bool | None) -> None:
    assert RequestOptions.read(lambda: text) == RequestOptions(normalize=normalize)


def test_parameters_that_are_not_utf8() -> None:
    with pytest.raises(InvalidArgumentError, match="parameters are not valid UTF-8: byte 0xe9"):
        RequestOptions.read(lambda: b'{"prompt": "caf\xe9"}'.decode())


def test_an_unknown_output_is_named_beside_the_known() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'ubinary' is not one of \['float', 'int8', 'binary'"):
        RequestOptions.parse({"outputs": "float,ubinary"})
