"""Vectors into a file, as they come. Nothing but a whole file ever has its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, TextIO

import numpy as np

from rose_client.files.errors import check_suffix
from rose_client.files.parquet import require_parquet
from rose_client.streams import EmbeddedBlock

_ROWS_AT_ONCE = 4096  # of a row group


class Sink(Protocol):
    """Where blocks go; a context manager, and whole at its end."""

    def write(self, block: EmbeddedBlock) -> None:
        """Add a block's texts, token counts and vectors, or of those what the format holds."""

    def __enter__(self) -> Sink: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@contextmanager
def open_vectors(path: Path) -> Iterator[Sink]:
    """A file to be written, by its suffix; it has another name until it is whole.

    Args:
        path: `.npy`: vectors alone, `[num_texts, dim]` float32; `.parquet`: columns `text`, `tokens` and `embedding`;
            `.jsonl`: the same, an object a line.

    Raises:
        FileFormatError: the suffix is not known, or the extra that it needs is missing.
        OSError: it cannot be written.
    """
    make = _SINKS[check_suffix(path, SUFFIXES, "no vectors are written to files")]
    unfinished = path.with_name(path.name + ".partial")
    try:
        with make(unfinished) as sink:
            yield sink
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class JsonLinesSink:
    """An object a line: `text`, `tokens`, `embedding`.

    Args:
        file: is written to, and not closed.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, block: EmbeddedBlock) -> None:
        """Add a block."""
        found = block.embeddings
        for text, tokens, vector in zip(block.texts, found.token_counts, found.vectors, strict=True):
            record = {"text": text, "tokens": int(tokens), "embedding": [round(float(x), 8) for x in vector]}
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> JsonLinesSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Everything is written."""


class _JsonLinesFile(JsonLinesSink):
    def __init__(self, path: Path) -> None:
        self._closing = path.open("w", encoding="utf-8")
        super().__init__(self._closing)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()


class _NpySink:
    """Rows behind a header that is written again, with their number, when that is known: numpy pads it for that."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._rows = self._dim = 0

    def write(self, block: EmbeddedBlock) -> None:
        vectors = block.embeddings.vectors
        if self._rows == 0:
            self._dim = vectors.shape[1]
            self._write_header()
        self._file.write(np.ascontiguousarray(vectors, "<f4").data)
        self._rows += len(vectors)

    def __enter__(self) -> _NpySink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, self._dim)}
        np.lib.format.write_array_header_1_0(self._file, header)


class _ParquetSink:
    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = require_parquet()
        self._path = path
        self._stack = ExitStack()
        self._writer: Any = None
        self._waiting: list[Any] = []

    def write(self, block: EmbeddedBlock) -> None:
        arrow, found = self._arrow, block.embeddings
        dim = found.vectors.shape[1]
        values = arrow.array(np.ascontiguousarray(found.vectors, np.float32).ravel())
        columns = {
            "text": arrow.array(block.texts, arrow.string()),
            "tokens": arrow.array(found.token_counts, arrow.int32()),
            "embedding": arrow.FixedSizeListArray.from_arrays(values, dim),
        }
        self._waiting.append(arrow.RecordBatch.from_pydict(columns))
        if sum(batch.num_rows for batch in self._waiting) >= _ROWS_AT_ONCE:
            self._flush()

    def __enter__(self) -> _ParquetSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None and self._waiting:
                self._flush()

    def _flush(self) -> None:
        table = self._arrow.Table.from_batches(self._waiting).combine_chunks()
        if self._writer is None:
            self._writer = self._stack.enter_context(self._parquet.ParquetWriter(self._path, table.schema))
        self._writer.write_table(table)
        self._waiting = []


_SINKS: dict[str, Callable[[Path], Sink]] = {".npy": _NpySink, ".parquet": _ParquetSink, ".jsonl": _JsonLinesFile}
SUFFIXES = frozenset(_SINKS)
