"""How long a sequence a checkpoint's positions allow, special tokens included. No torch: the tokenizer asks too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose_backend.errors import CheckpointError

OFFSET_TYPES = frozenset({"camembert", "roberta", "xlm-roberta"})
"""Families whose positions start behind the padding token's."""

_USUAL_PAD = 1


def pad_token(values: Mapping[str, Any]) -> int:
    """`pad_token_id` of a family in `OFFSET_TYPES`."""
    pad = values.get("pad_token_id")
    return _USUAL_PAD if pad is None else int(pad)


def usable_length(values: Mapping[str, Any], path: Path = Path("config.json")) -> int:
    """Tokens of the longest sequence.

    Args:
        values: of `config.json`.
        path: where they were read, for messages.

    Raises:
        CheckpointError: the key that says it is missing or no positive number, or leaves no position at all.
    """
    kind = values.get("model_type")
    if kind == "nomic_bert":
        return _nomic(values, path)
    most = _count(values, path, "max_position_embeddings")
    if kind not in OFFSET_TYPES:
        return most
    usable = most - (pad_token(values) + 1)
    if usable < 1:
        raise CheckpointError(
            f"{path}: max_position_embeddings {most} leaves no position behind pad_token_id {pad_token(values)}"
        )
    return usable


def _nomic(values: Mapping[str, Any], path: Path) -> int:
    """`n_positions`, else what was trained, which dynamic scaling may stretch."""
    if values.get("n_positions") is not None:
        return _count(values, path, "n_positions")
    trained = _count(values, path, "max_position_embeddings")
    rope = values.get("rope_parameters") or {}
    return int(trained * float(rope.get("factor", 1.0))) if rope.get("rope_type") == "dynamic" else trained


def _count(values: Mapping[str, Any], path: Path, key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{path}: {key} is {value!r}, not a positive number")
    return value
