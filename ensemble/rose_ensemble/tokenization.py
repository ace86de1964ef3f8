"""Texts to token ids: one Rust call for many requests, no state that one request could change for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, normalizers

from rose_backend.core import Int32Array
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint

_PROBE = "a"


@dataclass(frozen=True)
class Tokens:
    """Ragged token ids.

    Attributes:
        ids: `[total_tokens]` int32, back to back.
        lengths: `[num_texts]` int32.
    """

    ids: Int32Array
    lengths: Int32Array


@dataclass(frozen=True)
class Piece:
    """One token of a text.

    Attributes:
        id: in the vocabulary.
        text: the characters it stands for; of a special token its name.
        special: put in by the tokenizer, or a control token; then it has no place.
        start: index of its first character.
        stop: index after its last one.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TextTokenizer:
    """A checkpoint's `tokenizer.json`, with whatever truncation and padding the file bakes in switched off.

    Control tokens written by a user (`[SEP]`) are recognised as such, as sentence-transformers does.

    Args:
        checkpoint: names the folder, the length limit and whether texts are lower-cased.

    Raises:
        CheckpointError: the folder has no usable `tokenizer.json`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        path = checkpoint.folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: only fast tokenizers are served")
        self._tokenizer = _read_tokenizer(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if checkpoint.lower_case:
            _prepend_lower_case(self._tokenizer)
        self.max_length = checkpoint.max_length
        self._num_leading, self._num_trailing = self._count_special_tokens()
        if self._num_leading + self._num_trailing >= self.max_length:
            raise CheckpointError(
                f"max_length {self.max_length} leaves no room beside "
                f"{self._num_leading + self._num_trailing} special tokens"
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, at any length. Several texts are encoded outside the GIL.

        Raises:
            InvalidArgumentError: a text has words that the vocabulary cannot express.
        """
        try:
            if len(texts) == 1:  # handing one text to the library's threads takes longer than a short text itself
                return [self._tokenizer.encode(texts[0]).ids]
            encodings = self._tokenizer.encode_batch_fast(list(texts))
        except Exception as cause:  # the library raises nothing narrower
            raise InvalidArgumentError(f"TEXT cannot be tokenized: {cause}") from cause
        return [encoding.ids for encoding in encodings]

    def pieces(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[Piece]]:
        """What each text is taken apart into, at any length.

        Raises:
            InvalidArgumentError: as for `encode`.
        """
        try:
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        except Exception as cause:  # the library raises nothing narrower
            raise InvalidArgumentError(f"TEXT cannot be tokenized: {cause}") from cause
        return [
            [
                Piece(token, word, True, None, None) if special else Piece(token, text[start:stop], False, start, stop)
                for token, word, special, (start, stop) in zip(
                    encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
                )
            ]
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def fit(self, encoded: Sequence[list[int]], *, truncate: bool, direction: str) -> Tokens:
        """Bring encoded texts under the length limit and lay them back to back.

        Args:
            encoded: what `encode` returned.
            truncate: cut what is too long; the special tokens stay.
            direction: the side that is cut, `right` or `left`.

        Raises:
            InvalidArgumentError: a text is too long and `truncate` is off, or it has no tokens at all.
        """
        fitted = [ids if len(ids) <= self.max_length else self._cut(ids, direction) for ids in encoded]
        lengths = np.fromiter(map(len, fitted), np.int32, len(fitted))
        if not truncate:
            self._refuse_longer(encoded)
        if not lengths.all():
            index = int(np.flatnonzero(lengths == 0)[0])
            raise InvalidArgumentError(f"TEXT element {index} has no tokens: this checkpoint adds none of its own")
        ids = np.fromiter(chain.from_iterable(fitted), np.int32, int(lengths.sum()))
        return Tokens(ids, lengths)

    def _cut(self, ids: list[int], direction: str) -> list[int]:
        stop = len(ids) - self._num_trailing
        room = self.max_length - self._num_leading - self._num_trailing
        start = self._num_leading if direction == "right" else stop - room
        return ids[: self._num_leading] + ids[start : start + room] + ids[stop:]

    def _refuse_longer(self, encoded: Sequence[list[int]]) -> None:
        for index, ids in enumerate(encoded):
            if len(ids) > self.max_length:
                raise InvalidArgumentError(
                    f"TEXT element {index} has {len(ids)} tokens: the limit is {self.max_length}, "
                    "and parameter 'truncate' is false"
                )

    def _count_special_tokens(self) -> tuple[int, int]:
        """How many ids the post-processor puts before and after a text's own."""
        bare = self._tokenizer.encode(_PROBE, add_special_tokens=False).ids
        full = self._tokenizer.encode(_PROBE).ids
        for leading in range(len(full) - len(bare) + 1):
            if full[leading : leading + len(bare)] == bare:
                return leading, len(full) - len(bare) - leading
        raise CheckpointError("tokenizer.json: its post-processor changes a text's own token ids")


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as cause:  # the library raises nothing narrower
        raise CheckpointError(f"{path} is not a tokenizer: {cause}") from cause
    return tokenizer


def _prepend_lower_case(tokenizer: Tokenizer) -> None:
    """What `do_lower_case` asks for; lowering twice does no harm, so what the file has is left in place."""
    lower = normalizers.Lowercase()
    current = tokenizer.normalizer
    tokenizer.normalizer = lower if current is None else normalizers.Sequence([lower, current])
