"""Reading `config.json`: what must be there, and what must not be asked for. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rose_backend.errors import CheckpointError


def required(values: Mapping[str, Any], *names: str) -> Any:
    """The value of the first of these keys that has one; they are spellings of the same.

    Raises:
        CheckpointError: none has.
    """
    for name in names:
        if values.get(name) is not None:
            return values[name]
    raise CheckpointError(f"config.json has no key {names[0]!r}")


def refuse_causal(values: Mapping[str, Any]) -> None:
    """Of encoders, whose tokens all see one another; transformers hides later ones where either key says so.

    Raises:
        CheckpointError: it does.
    """
    for key in ("is_decoder", "is_causal"):
        refuse_others(values, key, False)


def refuse_others(values: Mapping[str, Any], key: str, *served: Any) -> None:
    """Accept a key that is absent, null or one of these values.

    Raises:
        CheckpointError: it has another.
    """
    value = values.get(key)
    if value is not None and value not in served:
        raise CheckpointError(
            f"config.json: {key} {value!r} is not served for model_type {values.get('model_type')!r}; "
            f"known: {list(served)}"
        )
