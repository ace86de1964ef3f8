"""Large inputs in blocks: as many texts at a time as one request carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rose_client.chunking import ChunkLimits, estimate_tokens
from rose_client.wire import Embeddings


@dataclass(frozen=True)
class EmbeddedBlock:
    """Consecutive texts of a large input with what came of them.

    Attributes:
        first: index of the first of them in the whole input.
        texts: as they were given.
        embeddings: theirs, a row each.
    """

    first: int
    texts: list[str]
    embeddings: Embeddings


@dataclass(frozen=True)
class Block:
    """Consecutive texts that fit one request.

    Attributes:
        first: index of the first of them in the whole input.
        texts: as they were given.
        items: in UTF-8.
    """

    first: int
    texts: list[str]
    items: list[bytes]


class BlockFiller:
    """Gathers texts until they fill a request; blocks are those of `chunking.split`.

    Args:
        limits: of one block.
    """

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self._first = self._tokens = 0
        self._texts: list[str] = []
        self._items: list[bytes] = []

    def add(self, text: str) -> Block | None:
        """Take the next text; a block without it, if it has no room in there.

        Raises:
            TypeError: it is not a string.
        """
        if not isinstance(text, str):
            raise TypeError(f"texts[{self._first + len(self._texts)}] is a {type(text).__name__}, not a string")
        item = text.encode()
        estimate = estimate_tokens(item)
        full = self._tokens + estimate > self._limits.max_tokens or len(self._texts) == self._limits.max_texts
        block = self.rest() if full else None
        self._texts.append(text)
        self._items.append(item)
        self._tokens += estimate
        return block

    def rest(self) -> Block | None:
        """What is gathered, if anything."""
        if not self._texts:
            return None
        block = Block(self._first, self._texts, self._items)
        self._first += len(self._texts)
        self._texts, self._items, self._tokens = [], [], 0
        return block


def blocks_of(texts: Iterable[str], limits: ChunkLimits) -> Iterator[Block]:
    """The texts in their order, read no faster than blocks are taken.

    Raises:
        TypeError: one is not a string.
    """
    filler = BlockFiller(limits)
    for text in texts:
        block = filler.add(text)
        if block is not None:
            yield block
    last = filler.rest()
    if last is not None:
        yield last


def refuse_single(texts: object) -> None:
    """A string is an iterable of strings too, and never meant as one.

    Raises:
        TypeError: it is one.
    """
    if isinstance(texts, str):
        raise TypeError("texts is a single string; pass an iterable of strings")
