"""Texts to token ids: one Rust call for many requests, no state that one request could change for another."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
from tokenizers import Tokenizer, normalizers

from rose_backend.core import Int32Array
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.checkpoint_files import CheckpointFiles
from rose_ensemble.cores import tokenizer_threads
from rose_ensemble.options import DIRECTIONS

logger = logging.getLogger(__name__)

_PROBE = "a"
_PROMPTS_KNOWN = 64  # most checkpoints have a handful
_FLATTENED_AT_ONCE = 128  # sequences
_PART_CHARACTERS = 1 << 14  # to a call, for each thread: a few milliseconds


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
        self._tokenizer, self._direction = open_tokenizer(checkpoint)
        self.max_length = checkpoint.max_length
        self._part_characters = _PART_CHARACTERS * tokenizer_threads()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        self._prompt_length = functools.lru_cache(_PROMPTS_KNOWN)(self._measure_prompt)
        self._num_leading, self._num_trailing = self._count_special_tokens()
        if self._num_leading + self._num_trailing >= self.max_length:
            raise CheckpointError(
                f"max_length {self.max_length} leaves no room beside "
                f"{self._num_leading + self._num_trailing} special tokens"
            )
        about = CheckpointFiles().mapping(checkpoint.folder / "tokenizer_config.json", optional=True)
        if about.get("add_eos_token") and self._num_trailing == 0:
            # As transformers does since release 5; before it, the other file won.
            logger.warning(
                "tokenizer.json puts no token behind a text, so add_eos_token is not followed",
                extra={"folder": str(checkpoint.folder)},
            )

    @property
    def special_ids(self) -> tuple[list[int], list[int]]:
        """The ids that the post-processor puts before and after a text's own."""
        full = self._tokenizer.encode(_PROBE).ids
        return full[: self._num_leading], full[len(full) - self._num_trailing :]

    def token_id(self, token: str) -> int | None:
        """The id of a token of the vocabulary."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Token ids of each text, at any length. Several texts are encoded outside the GIL.

        Thousands of them take several calls: others' few would wait for the library's threads until one is over.

        Args:
            texts: each by itself.
            special: whether the special tokens around a text are included.

        Raises:
            InvalidArgumentError: a text has words that the vocabulary cannot express.
        """
        encoded: list[list[int]] = []
        for part in _parts(texts, self._part_characters):
            try:
                encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=special)
            except Exception as cause:  # the library raises nothing narrower
                raise InvalidArgumentError(f"TEXT cannot be tokenized: {cause}") from cause
            encoded += [encoding.ids for encoding in encodings]
        return encoded

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

    def fit(self, encoded: Sequence[list[int]], *, truncate: bool, direction: str | None) -> Tokens:
        """Bring encoded texts under the length limit and lay them back to back.

        Args:
            encoded: what `encode` returned.
            truncate: cut what is too long; the special tokens stay.
            direction: the side that is cut, `right` or `left`; None: the checkpoint's.

        Raises:
            InvalidArgumentError: a text is too long and `truncate` is off, or it has no tokens at all.
        """
        if len(encoded) == 1 and 0 < len(encoded[0]) <= self.max_length:  # a busy server's most frequent case
            return Tokens(np.array(encoded[0], np.int32), np.array((len(encoded[0]),), np.int32))
        side = direction or self._direction
        fitted = [ids if len(ids) <= self.max_length else self._cut(ids, side) for ids in encoded]
        lengths = np.fromiter(map(len, fitted), np.int32, len(fitted))
        if not truncate:
            self._refuse_longer(encoded)
        if not lengths.all():
            index = int(np.flatnonzero(lengths == 0)[0])
            raise InvalidArgumentError(f"TEXT element {index} has no tokens: this checkpoint adds none of its own")
        return Tokens(_flat(fitted, lengths), lengths)

    def prompt_lengths(self, prompt: str, encoded: Sequence[list[int]], *, direction: str | None) -> Int32Array:
        """How many tokens at the start of each fitted text are the prompt's, `[num_texts]` int32.

        By the rule of sentence-transformers' `include_prompt`: as many as the prompt alone has, without a special token
        at its end, whether or not text and prompt meet within a token.

        Args:
            prompt: what stands in front of each text; not empty.
            encoded: prompts and texts, as `encode` returned them.
            direction: as `fit` got it; what is cut off the prompt is not counted.

        Raises:
            InvalidArgumentError: the prompt cannot be tokenized.
        """
        length = self._prompt_length(prompt)
        if (direction or self._direction) == "right":
            return np.full(len(encoded), length, np.int32)
        cut = np.array([max(0, len(ids) - self.max_length) for ids in encoded], np.int32)
        leading = min(self._num_leading, length)
        return np.maximum(length - leading - cut, 0) + np.int32(leading)

    def _measure_prompt(self, prompt: str) -> int:
        [ids] = self.encode([prompt])
        if len(ids) > self.max_length:
            ids = self._cut(ids, "right")
        return len(ids) - 1 if ids and ids[-1] in self._special_ids else len(ids)

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


def _flat(sequences: Sequence[list[int]], lengths: Int32Array) -> Int32Array:
    """All ids, back to back. Few sequences at a time: numpy lets no other thread in meanwhile."""
    ids, stop = np.empty(int(lengths.sum()), np.int32), 0
    for first in range(0, len(sequences), _FLATTENED_AT_ONCE):
        part = slice(first, first + _FLATTENED_AT_ONCE)
        start, stop = stop, stop + int(lengths[part].sum())
        ids[start:stop] = np.fromiter(chain.from_iterable(sequences[part]), np.int32, stop - start)
    return ids


def _parts(texts: Sequence[str], most: int) -> Iterator[list[str]]:
    """The texts, in lists of so many characters, or of one text that has more."""
    first, size = 0, 0
    for index, text in enumerate(texts):
        size += len(text)
        if size > most and index > first:
            yield list(texts[first:index])
            first, size = index, len(text)
    yield list(texts[first:])


def open_tokenizer(checkpoint: Checkpoint) -> tuple[Tokenizer, str]:
    """A checkpoint's `tokenizer.json`, which neither cuts nor pads; lower-casing where the checkpoint asks for it.

    Returns:
        The tokenizer, and the side from which the checkpoint wants long texts cut, `right` or `left`.

    Raises:
        CheckpointError: the folder has no usable `tokenizer.json`, or names another side.
    """
    path = checkpoint.folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: only fast tokenizers are served")
    tokenizer = _read_tokenizer(path)
    side = _truncation_side(checkpoint.folder / "tokenizer_config.json", tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if checkpoint.lower_case:
        _prepend_lower_case(tokenizer)
    return tokenizer, side


def _truncation_side(path: Path, tokenizer: Tokenizer) -> str:
    """As transformers finds it: `truncation_side`, else the direction that `tokenizer.json` cuts in."""
    baked_in = (tokenizer.truncation or {}).get("direction", DIRECTIONS[0])
    side = CheckpointFiles().mapping(path, optional=True).get("truncation_side", baked_in)
    if side not in DIRECTIONS:
        raise CheckpointError(f"{path}: truncation_side {side!r} is not one of {list(DIRECTIONS)}")
    return str(side)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as cause:  # the library raises nothing narrower
        raise CheckpointError(f"{path} is not a tokenizer: {cause}") from cause
    return tokenizer


def _prepend_lower_case(tokenizer: Tokenizer) -> None:
    """What `do_lower_case` asks for: lower-casing in front of what the file has, unless that lower-cases by itself."""
    current = tokenizer.normalizer
    steps = [] if current is None else [current]
    if isinstance(current, normalizers.Sequence):
        steps = list(cast("Iterable[normalizers.Normalizer]", current))  # as its stubs do not say
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
