"""Padded shapes: batches of one bucket share a recording. Plain arithmetic, no torch."""

from __future__ import annotations

from dataclasses import dataclass

_SMALLEST = 16
_FINE_STEP, _COARSE_STEP = 64, 256
_FINE_UP_TO = 1024  # below it 256 more tokens would be a sizeable share of the batch
_SHORTEST = 32
_PAGE = 512  # tokens


@dataclass(frozen=True, order=True)
class Bucket:
    """The shape a batch is padded to.

    Attributes:
        num_tokens: rows, of which the last ones may be padding.
        num_sequences: rows of the result. One more sequence, the last, takes the padding tokens.
        max_seqlen: no real sequence is longer.
    """

    num_tokens: int
    num_sequences: int
    max_seqlen: int

    @classmethod
    def fitting(cls, num_tokens: int, num_sequences: int, max_seqlen: int) -> Bucket:
        """The smallest bucket that holds a batch.

        Tokens go up to 16, 32, or a multiple of 64 (from 1,024 on, of 256), the other two to powers of two: attention
        depends on them only through its grid, where idle blocks cost next to nothing.
        """
        if num_tokens <= _FINE_STEP:
            padded = max(_SMALLEST, _power_of_two(num_tokens))
        else:
            step = _FINE_STEP if num_tokens <= _FINE_UP_TO else _COARSE_STEP
            padded = -(-num_tokens // step) * step
        return cls(
            padded,
            _power_of_two(num_sequences),
            max(_SHORTEST, _power_of_two(max_seqlen)),
        )

    def holds(self, other: Bucket) -> bool:
        """Whether every batch that fits `other` fits this one."""
        return (
            self.num_tokens >= other.num_tokens
            and self.num_sequences >= other.num_sequences
            and self.max_seqlen >= other.max_seqlen
        )


def covering_buckets(largest: int, max_length: int) -> list[Bucket]:
    """A few buckets that between them hold most batches: ever larger ones, of texts of a page at most.

    Args:
        largest: of their tokens.
        max_length: longest sequence served, in tokens.
    """
    found, tokens = [], _SMALLEST * 4
    while tokens <= largest:
        found.append(Bucket.fitting(tokens, tokens // _SMALLEST, min(tokens, max_length, _PAGE)))
        tokens *= 2
    return found


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
