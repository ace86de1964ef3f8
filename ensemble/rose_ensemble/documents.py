"""Documents given as chunks: each is one sequence, whose tokens see one another, with a vector a chunk.

Two rules, by the checkpoint:

- pplx-embed-context: chunks are joined with the separator token, and the joined text is tokenized once. A chunk's
  tokens are those between the separators beside it, which belong to no chunk.
- any other that pools the mean (late chunking): each chunk is tokenized by itself, and the tokens follow one another
  with nothing between them, so chunks are best consecutive pieces of a text, blanks included. The special tokens that
  a text has around it stand around the whole document, and count with its first and its last chunk: a document of one
  chunk has the vector of that text.

Documents are never cut: a chunk would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rose_backend.config import PoolingMode
from rose_backend.core import Int32Array, Spans
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.tokenization import TextTokenizer, Tokens


@dataclass(frozen=True)
class Documents:
    """Tokenized documents.

    Attributes:
        tokens: a sequence a document.
        spans: the chunks' places in them.
    """

    tokens: Tokens
    spans: Spans


class DocumentTokenizer:
    """Turns chunks into sequences for one checkpoint.

    Args:
        checkpoint: its separator, if it is a contextual one, and its pooling.
        tokenizer: its tokenizer.

    Raises:
        CheckpointError: the separator is no token of the vocabulary.
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._separator = checkpoint.separator
        self._separator_id = -1
        self._pools_mean = checkpoint.head.modes == (PoolingMode.MEAN,)
        self._includes_prompt = checkpoint.head.include_prompt
        if self._separator is not None:
            found = tokenizer.token_id(self._separator)
            if found is None:
                raise CheckpointError(f"{checkpoint.folder}: separator {self._separator!r} is not in the vocabulary")
            self._separator_id = found

    def check(self, *, late_chunking: bool | None) -> None:
        """Refuse documents that this checkpoint has no vectors for.

        Args:
            late_chunking: the request's parameter.

        Raises:
            InvalidArgumentError: says what it lacks.
        """
        if not self._pools_mean:
            raise InvalidArgumentError(
                "CHUNK_COUNTS is given, but this checkpoint does not pool the mean of all tokens"
            )
        if late_chunking is False:
            raise InvalidArgumentError("CHUNK_COUNTS is given, but parameter 'late_chunking' is false")
        if self._separator is None and late_chunking is None:
            raise InvalidArgumentError(
                "CHUNK_COUNTS is given, but this checkpoint is not trained on documents in chunks; "
                "parameter 'late_chunking' asks for them all the same"
            )

    def encode(self, texts: Sequence[str], counts: Int32Array, prompt: str) -> Documents:
        """Tokenize documents.

        Args:
            texts: all chunks of all documents, one after another.
            counts: `[num_documents]` int32, the chunks of each, 1 at least; they add up to the texts.
            prompt: put in front of each document.

        Raises:
            InvalidArgumentError: a document is too long or has no tokens, or a chunk holds the separator.
        """
        stops = np.cumsum(counts)
        firsts = stops - counts
        chunks = list(texts)
        if prompt:
            for first in firsts:
                chunks[first] = prompt + chunks[first]
        made = list(self._joined(chunks, firsts, stops) if self._separator else self._laid_out(chunks, firsts, stops))
        ids = [row for row, _ in made]
        for row, first in zip(ids, firsts, strict=True):
            if len(row) > self._tokenizer.max_length:
                raise InvalidArgumentError(
                    f"the document from TEXT element {first} on has {len(row)} tokens: the limit is "
                    f"{self._tokenizer.max_length}, and documents are never cut"
                )
            if not row:
                raise InvalidArgumentError(f"the document from TEXT element {first} on has no tokens")
        bounds = [bound for _, bound in made]
        starts = np.concatenate([bound[0] for bound in bounds]).astype(np.int32)
        ends = np.concatenate([bound[1] for bound in bounds]).astype(np.int32)
        if prompt and not self._includes_prompt:
            skipped = self._tokenizer.prompt_lengths(prompt, ids, direction="right")
            starts[firsts] = np.minimum(np.maximum(starts[firsts], skipped), ends[firsts])
        tokens = Tokens(np.concatenate([np.array(row, np.int32) for row in ids]), np.array([*map(len, ids)], np.int32))
        return Documents(tokens, Spans(counts, starts, ends))

    def _joined(
        self, chunks: Sequence[str], firsts: Int32Array, stops: Int32Array
    ) -> Iterator[tuple[list[int], tuple[Int32Array, Int32Array]]]:
        """Ids of each document, and where its chunks start and end: by the rule of pplx-embed-context."""
        assert self._separator is not None
        for index, chunk in enumerate(chunks):
            if self._separator in chunk:
                raise InvalidArgumentError(f"TEXT element {index} holds {self._separator!r}, which separates chunks")
        joined = [self._separator.join(chunks[first:stop]) for first, stop in zip(firsts, stops, strict=True)]
        for ids, first, stop in zip(self._tokenizer.encode(joined), firsts, stops, strict=True):
            places = np.flatnonzero(np.array(ids, np.int32) == self._separator_id)
            if len(places) != stop - first - 1:
                raise InvalidArgumentError(
                    f"the document from TEXT element {first} on has {len(places) + 1} parts, not {stop - first} chunks"
                )
            yield ids, (np.array((0, *(places + 1)), np.int32), np.array((*places, len(ids)), np.int32))

    def _laid_out(
        self, chunks: Sequence[str], firsts: Int32Array, stops: Int32Array
    ) -> Iterator[tuple[list[int], tuple[Int32Array, Int32Array]]]:
        """As `_joined`, by the rule of late chunking."""
        leading, trailing = self._tokenizer.special_ids
        encoded = self._tokenizer.encode(chunks, special=False)
        for first, stop in zip(firsts, stops, strict=True):
            own = encoded[first:stop]
            ends = len(leading) + np.cumsum([len(row) for row in own], dtype=np.int32)
            starts = np.array((0, *ends[:-1]), np.int32)
            ids = [*leading, *(token for row in own for token in row), *trailing]
            ends[-1] = len(ids)
            yield ids, (starts, ends)
