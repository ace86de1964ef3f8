"""A call's texts in chunks of one request each, so that every engine replica and every server gets work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_BYTES_PER_TOKEN = 4
_SPECIAL_TOKENS = 2
_LONG = 8  # full chunks of a call that is begun and ended with smaller ones
_SMALLEST = 4  # of which so many are a full one

Item: TypeAlias = bytes | npt.NDArray[np.int32]
"""One input: a text in UTF-8, or its token ids. Those of a call are all of one kind."""


@dataclass(frozen=True)
class ChunkLimits:
    """How much one request carries. By default about two engine batches: small enough to spread, large enough to pack.

    Attributes:
        max_tokens: most tokens, as `estimate_tokens` counts them; a text that has more travels alone.
        max_texts: most texts.
    """

    max_tokens: int = 16_384
    max_texts: int = 256

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_texts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a chunk needs room for at least 1")


DEFAULT_LIMITS = ChunkLimits()


@dataclass(frozen=True)
class Chunk:
    """Consecutive texts that travel together.

    Attributes:
        first: index of the first of them in the call.
        texts: in UTF-8, or as token ids.
        tokens: their estimated number of tokens.
        counts: how many of them form each document; empty: each is on its own.
        is_part: the call has others, or is one block of a larger input.
    """

    first: int
    texts: Sequence[Item]
    tokens: int
    counts: tuple[int, ...] = ()
    is_part: bool = False


def estimate_tokens(text: Item) -> int:
    """About how many tokens a UTF-8 text has, special ones included; of token ids, their number.

    A client has no tokenizer. Four bytes a token is about right for English, too few tokens for scripts and code
    that split more finely, and too many for texts the server truncates; it only has to share work out evenly.
    """
    if not isinstance(text, bytes):
        return len(text)
    return -(-len(text) // _BYTES_PER_TOKEN) + _SPECIAL_TOKENS


def split(texts: Sequence[Item], limits: ChunkLimits, beside: int = 0) -> list[Chunk]:
    """The texts in their order, each chunk filled before the next is begun; at least one text.

    A long call is begun with smaller chunks, so that engines have work while the next ones are tokenized, and ended
    with smaller ones, so that all engines end at about the same time (guided self-scheduling: Polychronopoulos and
    Kuck, 1987, doi:10.1109/TC.1987.5009495).

    `beside` tokens are run with each text, besides its own.
    """
    estimates = [estimate_tokens(text) + beside for text in texts]
    left, most = sum(estimates), limits.max_tokens
    is_long = left > _LONG * most
    room = most // _SMALLEST if is_long else most
    chunks: list[Chunk] = []
    first = tokens = 0
    for index, estimate in enumerate(estimates):
        full = tokens + estimate > room or index - first == limits.max_texts
        if full and index > first:
            chunks.append(Chunk(first, texts[first:index], tokens))
            left -= tokens
            if is_long:
                room = max(most // _SMALLEST, min(2 * room, most, left // _LONG))
            first, tokens = index, 0
        tokens += estimate
    chunks.append(Chunk(first, texts[first:], tokens))
    return chunks if len(chunks) == 1 else as_parts(chunks)


def split_documents(texts: Sequence[Item], counts: Sequence[int], limits: ChunkLimits) -> list[Chunk]:
    """As `split`, with no document in two chunks; one that is larger than a chunk travels alone.

    Args:
        texts: of all documents, one after another.
        counts: how many form each, at least 1; they add up to the texts.
        limits: of one chunk.
    """
    chunks: list[Chunk] = []
    begin = first = tokens = 0  # of the chunk that is being filled: its first document, that one's first text
    stop = 0
    for index, count in enumerate(counts):
        estimate = sum(map(estimate_tokens, texts[stop : stop + count]))
        full = tokens + estimate > limits.max_tokens or stop + count - first > limits.max_texts
        if full and index > begin:
            chunks.append(Chunk(first, texts[first:stop], tokens, tuple(counts[begin:index])))
            begin, first, tokens = index, stop, 0
        tokens += estimate
        stop += count
    chunks.append(Chunk(first, texts[first:], tokens, tuple(counts[begin:])))
    return chunks if len(chunks) == 1 else as_parts(chunks)


def as_parts(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same, of something that has more than these."""
    return [replace(chunk, is_part=True) for chunk in chunks]
