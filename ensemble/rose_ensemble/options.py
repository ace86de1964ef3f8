"""Request parameters, parsed once into a frozen object. An unknown name is an error, not a shrug."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rose_backend.errors import InvalidArgumentError

# Headers a gateway forwards arrive as parameters; tracing ones are for others to read.
_FORWARDED = frozenset({"traceparent", "tracestate", "baggage"})
_INPUT_TYPES = ("query", "document")
DIRECTIONS = ("right", "left")
"""The sides from which a text that is too long may be cut."""
_LANES = ("online", "bulk")
_SCORING_ONLY = frozenset({"instruction", "raw_scores"})
_SCORING = _SCORING_ONLY | {"truncate", "truncation_direction", "lane", "probe"}
_OUTPUTS = ("float", "int8", "binary", "sparse", "token")
_BIT_ORDERS = ("msb", "lsb")


@dataclass(frozen=True)
class RequestOptions:
    """What a client may ask of one request.

    Attributes:
        prompt_name: which of the checkpoint's prompts goes in front of every text.
        prompt: a literal text to put in front instead.
        input_type: `query` or `document`; picks the checkpoint's prompt for it, if it has one.
        dimensions: how many leading elements of each vector are wanted; None leaves it to the checkpoint.
        normalize: scale vectors to unit length; None leaves it to the checkpoint.
        renormalize: of fewer dimensions: scale what is left, rather than the whole vector before the cut.
        truncate: cut texts longer than the model's limit; otherwise they are an error.
        truncation_direction: the side that is cut, `right` or `left`; None leaves it to the checkpoint.
        lane: `online` or `bulk`, where the request queues; None: by its size.
        instruction: what a reranker that is told so is to look for; None leaves it to the checkpoint.
        raw_scores: whether a reranker's scores are its logits.
        outputs: the forms in which vectors are wanted, each once.
        late_chunking: pool each chunk among its document's tokens; None: where the checkpoint is trained for it.
        bit_order: the bit of a byte of `binary` that the first of its elements is in: `msb`, the highest, or `lsb`.
        probe: a health check: bulk work that nothing else is beside still counts as alone.
    """

    prompt_name: str | None = None
    prompt: str | None = None
    input_type: str | None = None
    normalize: bool | None = None
    renormalize: bool = True
    truncate: bool = True
    truncation_direction: str | None = None
    lane: str | None = None
    dimensions: int | None = None
    instruction: str | None = None
    raw_scores: bool = False
    outputs: tuple[str, ...] = ("float",)
    bit_order: str = "msb"
    late_chunking: bool | None = None
    probe: bool = False

    @classmethod
    def read(cls, parameters: Callable[[], str], *, scoring: bool = False) -> RequestOptions:
        """Parse the parameters of a Triton request.

        Args:
            parameters: the request's accessor of that name; its call decodes bytes that HTTP passes on unchecked.
            scoring: see `parse`.

        Raises:
            InvalidArgumentError: they are not UTF-8, or as for `parse`.
        """
        try:
            text = parameters()
        except UnicodeDecodeError as cause:
            wrong = cause.object[cause.start]
            raise InvalidArgumentError(f"parameters are not valid UTF-8: byte 0x{wrong:02x} ({cause.reason})") from None
        return _parse_text(text, scoring)

    @classmethod
    def parse(cls, parameters: Mapping[str, Any], *, scoring: bool = False) -> RequestOptions:
        """Check names and values.

        Args:
            parameters: by name.
            scoring: whether they are for a reranker, which knows others than an embedding model.

        Raises:
            InvalidArgumentError: names the parameter, its value and what is allowed.
        """
        known = _SCORING if scoring else cls.__dataclass_fields__.keys() - _SCORING_ONLY
        values = {name: value for name, value in parameters.items() if name not in _FORWARDED}
        for name in values:
            if name not in known:
                raise InvalidArgumentError(f"parameter {name!r} is not known; known: {sorted(known)}")
        options = cls(
            prompt_name=_text(values, "prompt_name"),
            prompt=_text(values, "prompt"),
            input_type=_choice(values, "input_type", _INPUT_TYPES),
            normalize=_flag(values, "normalize"),
            renormalize=_flag(values, "renormalize") is not False,
            truncate=_flag(values, "truncate") is not False,
            truncation_direction=_choice(values, "truncation_direction", DIRECTIONS),
            lane=_choice(values, "lane", _LANES),
            dimensions=_count(values, "dimensions"),
            instruction=_text(values, "instruction"),
            raw_scores=_flag(values, "raw_scores") is True,
            outputs=_listed(values, "outputs", _OUTPUTS) or ("float",),
            bit_order=_choice(values, "bit_order", _BIT_ORDERS) or "msb",
            late_chunking=_flag(values, "late_chunking"),
            probe=_flag(values, "probe") is True,
        )
        named = [n for n in ("prompt_name", "prompt", "input_type") if getattr(options, n) is not None]
        if len(named) > 1:
            raise InvalidArgumentError(f"parameters {named} exclude one another: give one of them")
        return options


@functools.lru_cache(maxsize=1024)  # most requests of a server ask for the same things
def _parse_text(text: str, scoring: bool) -> RequestOptions:
    return RequestOptions.parse(json.loads(text or "{}"), scoring=scoring)


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"parameter {name!r} is {value!r}, not a string")
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool | None:
    value = values.get(name)
    if isinstance(value, str) and value.lower() in ("true", "false"):  # some clients send only strings
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise InvalidArgumentError(f"parameter {name!r} is {value!r}, not a boolean")
    return value


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidArgumentError(f"parameter {name!r} is {value!r}, not a whole number from 1 up")
    return value


def _choice(values: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str | None:
    value = _text(values, name)
    if value is not None and value.lower() not in allowed:
        raise InvalidArgumentError(f"parameter {name!r} is {value!r}, not one of {list(allowed)}")
    return None if value is None else value.lower()


def _listed(values: Mapping[str, Any], name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Values with commas between them, each of them known, each once."""
    text = _text(values, name)
    if text is None:
        return ()
    found = [item.strip().lower() for item in text.split(",")]
    for item in found:
        if item not in known:
            raise InvalidArgumentError(f"parameter {name!r} is {text!r}: {item!r} is not one of {list(known)}")
    return tuple(dict.fromkeys(found))
