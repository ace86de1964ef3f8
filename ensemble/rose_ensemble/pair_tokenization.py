"""Pairs of texts to token ids: one Rust call for the texts of many requests, a query only once for its documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from rose_backend.core import Field, Fields
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.scoring import LONGEST_FIRST, ONLY_SECOND, PairTemplate, Scoring
from rose_ensemble.tokenization import Tokens, open_tokenizer

_PROBE = "a"


@dataclass(frozen=True)
class Pairs:
    """A query with each of its documents.

    Attributes:
        query: one text.
        documents: at least one.
        options: truncation and instruction.
    """

    query: str
    documents: Sequence[str]
    options: RequestOptions


class PairTokenizer(Protocol):
    """Texts to encode, and what to make of their ids."""

    def texts(self, pairs: Pairs) -> list[str]:
        """What is to be encoded, without special tokens."""

    def join(self, pairs: Pairs, encoded: Sequence[list[int]]) -> tuple[Tokens, Fields]:
        """A sequence for each document, no longer than the limit.

        Args:
            pairs: the request.
            encoded: ids of its `texts`.

        Raises:
            InvalidArgumentError: a pair is too long and must not be cut, or cannot be.
        """

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens, outside the GIL.

        Raises:
            InvalidArgumentError: a text has words that the vocabulary cannot express.
        """


def open_pair_tokenizer(checkpoint: Checkpoint, scoring: Scoring) -> PairTokenizer:
    """The one a reranker needs.

    Raises:
        CheckpointError: its `tokenizer.json` cannot be used, or leaves no room for texts.
    """
    tokenizer, side = open_tokenizer(checkpoint)
    if scoring.template is not None:
        return _Templated(tokenizer, side, checkpoint.max_length, scoring.template)
    return _Joined(tokenizer, side, checkpoint.max_length, scoring)


class _Encoder:
    def __init__(self, tokenizer: Tokenizer, side: str) -> None:
        self._tokenizer = tokenizer
        self._side = side

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `PairTokenizer`."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as cause:  # the library raises nothing narrower
            raise InvalidArgumentError(f"QUERY or DOCUMENT cannot be tokenized: {cause}") from cause
        return [encoding.ids for encoding in encodings]

    def _keep(self, options: RequestOptions) -> Callable[[list[int], int], list[int]]:
        """What leaves so many ids of a text: those furthest from the side that is cut."""
        return _keep_left if (options.truncation_direction or self._side) == "right" else _keep_right


class _Joined(_Encoder):
    """Two texts as the post-processor of `tokenizer.json` joins them: `[CLS] query [SEP] document [SEP]`, or alike."""

    def __init__(self, tokenizer: Tokenizer, side: str, max_length: int, scoring: Scoring) -> None:
        super().__init__(tokenizer, side)
        self._max_length = max_length
        self._strategy = scoring.strategy
        probe = tokenizer.encode(_PROBE, _PROBE)
        ids, owners = probe.ids, probe.sequence_ids
        if {0, 1} - set(owners):
            raise CheckpointError(f"tokenizer.json cannot express {_PROBE!r}")
        first, second = owners.index(0), owners.index(1)
        between, behind = first + owners.count(0), second + owners.count(1)
        self._leading, self._middle, self._trailing = ids[:first], ids[between:second], ids[behind:]
        self._room = max_length - len(ids) + owners.count(0) + owners.count(1)
        if self._room < 1:
            raise CheckpointError(
                f"max_length {max_length} leaves no room beside {max_length - self._room} special tokens"
            )
        self._type_from: int | None = None  # counted from the end of the query
        if scoring.config.token_types and 1 in probe.type_ids:
            self._type_from = probe.type_ids.index(1) - between
            if self._type_from < 0 or 0 in probe.type_ids[probe.type_ids.index(1) :]:
                raise CheckpointError(
                    f"tokenizer.json gives a pair the token types {probe.type_ids}, which are not served"
                )

    def texts(self, pairs: Pairs) -> list[str]:
        """See `PairTokenizer`: the query, then the documents."""
        return [pairs.query, *pairs.documents]

    def join(self, pairs: Pairs, encoded: Sequence[list[int]]) -> tuple[Tokens, Fields]:
        """See `PairTokenizer`."""
        query, *documents = encoded
        keep = self._keep(pairs.options)
        parts: list[list[int]] = []
        lengths = np.empty(len(documents), np.int32)
        query_lengths = np.empty(len(documents), np.int32)
        special = self._max_length - self._room
        for index, document in enumerate(documents):
            wanted = len(query), len(document)
            if sum(wanted) > self._room:
                if not pairs.options.truncate:
                    raise _too_long(index, sum(wanted) + special, self._max_length)
                wanted = self._fitted(*wanted)
            parts += (self._leading, keep(query, wanted[0]), self._middle, keep(document, wanted[1]), self._trailing)
            lengths[index] = sum(wanted) + special
            query_lengths[index] = wanted[0]
        tokens = Tokens(np.fromiter(chain.from_iterable(parts), np.int32, int(lengths.sum())), lengths)
        if self._type_from is None:
            return tokens, {}
        return tokens, {Field.TYPE_FROM: query_lengths + np.int32(len(self._leading) + self._type_from)}

    def _fitted(self, query: int, document: int) -> tuple[int, int]:
        """How many tokens of each are kept of a pair that is too long."""
        room = self._room
        if self._strategy == LONGEST_FIRST:
            # As the library does it, `truncate_encodings` in tokenizers' `utils/truncation.rs`: the longer one alone
            # where that is enough, else half for each, the odd token for the longer.
            shorter = min(query, document)
            longer = max(shorter, room - shorter)
            if shorter + longer > room:
                shorter, longer = room // 2, room - room // 2
            return (longer, shorter) if query > document else (shorter, longer)
        kept, name = (query, "QUERY") if self._strategy == ONLY_SECOND else (document, "DOCUMENT")
        if kept >= room:
            raise InvalidArgumentError(
                f"{name} has {kept} tokens, which leave no room for the other text in {room}, and this checkpoint's "
                f"tokenizer.json asks for {self._strategy}"
            )
        return (query, room - query) if self._strategy == ONLY_SECOND else (room - document, document)


class _Templated(_Encoder):
    """Two texts put into words; what stands around those is tokenized apart and never cut."""

    def __init__(self, tokenizer: Tokenizer, side: str, max_length: int, template: PairTemplate) -> None:
        super().__init__(tokenizer, side)
        self._max_length = max_length
        self._template = template
        self._prefix, self._suffix = self.encode([template.prefix, template.suffix])
        self._room = max_length - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise CheckpointError(
                f"max_length {max_length} leaves no room beside {max_length - self._room} of the template"
            )

    def texts(self, pairs: Pairs) -> list[str]:
        """See `PairTokenizer`: one for each document."""
        body, instruction = self._template.body, pairs.options.instruction
        return [body(instruction, pairs.query, document) for document in pairs.documents]

    def join(self, pairs: Pairs, encoded: Sequence[list[int]]) -> tuple[Tokens, Fields]:
        """See `PairTokenizer`."""
        keep = self._keep(pairs.options)
        around = self._max_length - self._room
        if not pairs.options.truncate:
            for index, body in enumerate(encoded):
                if len(body) > self._room:
                    raise _too_long(index, len(body) + around, self._max_length)
        fitted = [body if len(body) <= self._room else keep(body, self._room) for body in encoded]
        lengths = np.array([len(body) + around for body in fitted], np.int32)
        parts = chain.from_iterable((self._prefix, body, self._suffix) for body in fitted)
        return Tokens(np.fromiter(chain.from_iterable(parts), np.int32, int(lengths.sum())), lengths), {}


def _keep_left(ids: list[int], count: int) -> list[int]:
    return ids[:count]


def _keep_right(ids: list[int], count: int) -> list[int]:
    return ids[len(ids) - count :]


def _too_long(index: int, length: int, limit: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"DOCUMENT element {index} has, with the query, {length} tokens: the limit is {limit}, "
        "and parameter 'truncate' is false"
    )
