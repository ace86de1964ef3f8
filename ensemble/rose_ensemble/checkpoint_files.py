"""The JSON files of a checkpoint folder: read with errors that name them, and remembered."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rose_backend.errors import CheckpointError


class CheckpointFiles:
    """What was read of one checkpoint.

    Attributes:
        read: the files that were there, in the order they were asked for.
    """

    def __init__(self) -> None:
        self.read: list[Path] = []

    def mapping(self, path: Path, *, optional: bool = False) -> Mapping[str, Any]:
        """A file that holds a JSON object; an optional one that is missing is empty.

        Raises:
            CheckpointError: it is missing, or holds something else.
        """
        if optional and not path.is_file():
            return {}
        values = self._load(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds no JSON object")
        return values

    def entries(self, path: Path) -> list[Mapping[str, Any]]:
        """A file that holds a list of JSON objects with a `type` each.

        Raises:
            CheckpointError: it is missing, or holds something else.
        """
        values = self._load(path)
        if not isinstance(values, list) or not all(isinstance(entry, dict) and "type" in entry for entry in values):
            raise CheckpointError(f"{path} holds no list of modules with a type each")
        return values

    def text(self, path: Path) -> str:
        """A file that holds text.

        Raises:
            CheckpointError: it is missing, or holds something else.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except UnicodeDecodeError as cause:
            raise CheckpointError(f"{path} is not text: {cause}") from cause
        if path not in self.read:
            self.read.append(path)
        return text

    def _load(self, path: Path) -> Any:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as cause:
            raise CheckpointError(f"{path} is not valid JSON: {cause}") from cause
        if path not in self.read:
            self.read.append(path)
        return values


def positive_number(path: Path, values: Mapping[str, Any], key: str) -> int:
    """A key's whole number, though transformers writes 1e30 where a tokenizer has no limit.

    Raises:
        CheckpointError: it is something else, or below 1.
    """
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{path}: {key} is {value!r}, not a positive number")
    return int(value)


def flag(path: Path, values: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A key's boolean.

    Raises:
        CheckpointError: it is something else.
    """
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {value!r}, not a boolean")
    return value


def refuse_unknown(path: Path, values: Mapping[str, Any], known: Collection[str]) -> None:
    """Options nobody here knows might change the vectors.

    Raises:
        CheckpointError: names the first one.
    """
    for key in values:
        if key not in known:
            raise CheckpointError(f"{path}: option {key!r} is not served; known: {sorted(known)}")


def refuse_others(path: Path, values: Mapping[str, Any], key: str, served: Collection[Any]) -> None:
    """A key that may be left out but not changed.

    Raises:
        CheckpointError: it has a value that is not among those served.
    """
    if key in values and values[key] not in served:
        raise CheckpointError(f"{path}: {key} {values[key]!r} is not served; known: {list(served)}")
