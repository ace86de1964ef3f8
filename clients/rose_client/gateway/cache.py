"""What texts came to, kept for when they are asked for again."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rose_client.chunking import Item
from rose_client.wire import Embeddings, EmbedOptions, SparseVector

_NOT_OF_VECTORS = ("lane", "traceparent", "tracestate")  # say how a request travels
_ENTRY_BYTES = 640  # of an entry besides its numbers: key, link, objects; measured with tracemalloc


class CacheWatch(Protocol):
    """Counts what a cache does."""

    def cache_asked(self, hits: int, misses: int) -> None:
        """So many texts were found, and so many not."""

    def cache_changed(self, size: int, evictions: int) -> None:
        """It holds so many bytes now, for which so many entries had to go."""


@dataclass(frozen=True)
class Entry:
    """One text's part of an answer.

    Attributes:
        values: by output, `[dim]`, `[num_tokens, width]` or a sparse vector; memory of its own.
        token_count: tokens that were run.
        num_bytes: what keeping it takes.
    """

    values: Mapping[str, npt.NDArray[Any] | SparseVector]
    token_count: int
    num_bytes: int


class VectorCache:
    """Answers by model, options and text; what was asked for least lately goes first. Use from one event loop.

    Args:
        max_bytes: most memory, entries' own and what they take besides.
        watch: told of everything.
    """

    def __init__(self, max_bytes: int, watch: CacheWatch) -> None:
        self._max_bytes = max_bytes
        self._watch = watch
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._size = 0

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Those that are kept, of the texts with these keys."""
        found: dict[bytes, Entry] = {}
        hits = 0
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                found[key] = entry
                hits += 1
        self._watch.cache_asked(hits, len(keys) - hits)
        return found

    def put(self, entries: Mapping[bytes, Entry]) -> None:
        """Keep these, as far as there is room."""
        evictions = 0
        for key, entry in entries.items():
            if entry.num_bytes > self._max_bytes:
                continue
            known = self._entries.pop(key, None)
            self._size += entry.num_bytes - (known.num_bytes if known is not None else 0)
            self._entries[key] = entry
        while self._size > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.num_bytes
            evictions += 1
        self._watch.cache_changed(self._size, evictions)


def keys_of(model: str, options: EmbedOptions, items: Sequence[Item]) -> list[bytes]:
    """A SHA-256 of each: model, every option that vectors depend on, and the text or token ids."""
    asked = {name: value for name, value in options.items() if name not in _NOT_OF_VECTORS}
    common = hashlib.sha256(json.dumps([model, asked], sort_keys=True).encode())
    keys = []
    for item in items:
        whole = common.copy()
        if isinstance(item, bytes):
            whole.update(b"\0text\0")
            whole.update(item)
        else:
            whole.update(b"\0ids\0")
            whole.update(np.ascontiguousarray(item, "<i4").data)
        keys.append(whole.digest())
    return keys


def entries_of(answer: Embeddings) -> list[Entry]:
    """An answer text by text, in copies: a view would keep the whole of it in memory."""
    entries = []
    for index, count in enumerate(answer.token_counts.tolist()):
        values = {name: _copied(rows[index]) for name, rows in answer.arrays.items()}
        entries.append(Entry(values, count, _ENTRY_BYTES + sum(map(_num_bytes, values.values()))))
    return entries


def joined(entries: Sequence[Entry]) -> Embeddings:
    """Texts' answers as one; the inverse of `entries_of`."""
    arrays: dict[str, Any] = {}
    for name in entries[0].values:
        rows: list[Any] = [entry.values[name] for entry in entries]
        arrays[name] = rows if name in ("sparse", "token") else np.stack(rows)
    return Embeddings(arrays, np.array([entry.token_count for entry in entries], np.int32))


def _copied(row: npt.NDArray[Any] | SparseVector) -> npt.NDArray[Any] | SparseVector:
    return SparseVector(row.index.copy(), row.weight.copy()) if isinstance(row, SparseVector) else row.copy()


def _num_bytes(row: npt.NDArray[Any] | SparseVector) -> int:
    return row.index.nbytes + row.weight.nbytes if isinstance(row, SparseVector) else row.nbytes
