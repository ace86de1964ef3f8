"""Texts of a file, read as they are asked for."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose_client.files.errors import FileFormatError, check_suffix
from rose_client.files.parquet import require_parquet

DEFAULT_FIELD = "text"
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class TextSource:
    """A file of texts.

    Attributes:
        texts: in the order of the file; what is wrong with it is raised on the way, as `FileFormatError` or `OSError`.
        total: how many there are, where the file says so.
    """

    texts: Iterator[str]
    total: int | None = None


def open_texts(path: Path, field: str = DEFAULT_FIELD) -> TextSource:
    """The texts of a file, by its suffix.

    Args:
        path: `.txt`: a text a line; `.jsonl`: an object a line; `.csv`: with a header; `.parquet`.
        field: of an object, or the column, that holds the text; means nothing to `.txt`.

    Raises:
        FileFormatError: the suffix is not known, or the extra that it needs is missing.
        OSError: parquet that cannot be opened.
    """
    return _OPENERS[check_suffix(path, SUFFIXES, "no texts are read from files")](path, field)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, without their ends."""
    number = 0
    with path.open(encoding="utf-8-sig", newline="\n") as file:  # "\n" alone ends a line, here and in JSON lines
        try:
            for number, line in enumerate(file, 1):
                yield number, line.removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as cause:
            raise FileFormatError(f"{path}: not UTF-8 soon after line {number}: {cause}") from cause


def _plain(path: Path, field: str) -> TextSource:  # noqa: ARG001 (one signature for all kinds)
    return TextSource(line for _, line in _lines(path))


def _json_lines(path: Path, field: str) -> TextSource:
    def texts() -> Iterator[str]:
        for number, line in _lines(path):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as cause:
                raise FileFormatError(f"{path}, line {number}: not JSON: {cause}") from cause
            if not isinstance(record, dict) or field not in record:
                raise FileFormatError(f"{path}, line {number}: not an object with the field {field!r}")
            yield _text(record[field], f"{path}, line {number}: {field!r}")

    return TextSource(texts())


def _csv(path: Path, field: str) -> TextSource:
    def texts() -> Iterator[str]:
        csv.field_size_limit(sys.maxsize)  # a text may be longer than 128 KiB
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            try:
                _require(path, field, list(rows.fieldnames or ()))
                for row in rows:
                    yield _text(row[field], f"{path}, line {rows.line_num}: {field!r}")
            except (csv.Error, UnicodeDecodeError) as cause:
                raise FileFormatError(f"{path}, line {rows.line_num}: {cause}") from cause

    return TextSource(texts())


def _parquet(path: Path, field: str) -> TextSource:
    arrow, parquet = require_parquet()
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowInvalid as cause:
        raise FileFormatError(f"{path}: {cause}") from cause
    _require(path, field, file.schema_arrow.names)

    def texts() -> Iterator[str]:
        with file:
            row = 0
            try:
                for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[field]):
                    for value in batch.column(0).to_pylist():
                        yield _text(value, f"{path}, row {row}: {field!r}")
                        row += 1
            except arrow.ArrowInvalid as cause:
                raise FileFormatError(f"{path}, after row {row}: {cause}") from cause

    return TextSource(texts(), file.metadata.num_rows)


def _require(path: Path, field: str, names: list[str]) -> None:
    if field not in names:
        raise FileFormatError(f"{path} has no column {field!r}, only {names}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FileFormatError(f"{where} is {'missing' if value is None else type(value).__name__}, not a text")
    return value


_OPENERS: dict[str, Callable[[Path, str], TextSource]] = {
    ".txt": _plain,
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
SUFFIXES = frozenset(_OPENERS)
