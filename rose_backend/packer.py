"""First come, first served packing of sequences into a token budget (Tulip's part). No torch, no threads here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rose_backend.core import Batch, Request, Segment


@dataclass(frozen=True)
class TokenPacker:
    """Takes sequences off the head of a queue until a batch is full.

    A request larger than the budget spreads over several batches; a sequence is never cut, and one larger than the
    budget has a batch to itself. Requests stay in their order: the first sequence that does not fit ends the batch.

    Attributes:
        token_budget: most tokens in a batch of several sequences.
        max_sequences: most sequences in a batch.
    """

    token_budget: int
    max_sequences: int

    def take(
        self, queue: deque[Request], unwanted: Callable[[Request], bool] = lambda request: request.answered
    ) -> Batch | None:
        """Remove the next batch from the queue, or return None where there is nothing to do.

        Args:
            queue: the first come in front.
            unwanted: says of a request at the front, before each part of it, that it should leave the queue unpacked;
                by default if an earlier part failed, so that nobody waits for more.
        """
        segments: list[Segment] = []
        tokens_left, sequences_left = self.token_budget, self.max_sequences
        while queue:
            request = queue[0]
            if unwanted(request):
                queue.popleft()
                continue
            first, rest = request.num_packed, request.tokens_left
            count = request.num_sequences - first
            if rest > tokens_left or count > sequences_left:
                count = self._fitting(request, tokens_left, sequences_left)
                if count < 1 and segments:
                    break
                count = max(count, 1)
            segments.append(Segment(request, first, count))
            request.num_packed += count
            if request.num_packed < request.num_sequences:
                break
            queue.popleft()
            tokens_left -= rest
            sequences_left -= count
        return Batch.of(tuple(segments)) if segments else None

    @staticmethod
    def _fitting(request: Request, tokens_left: int, sequences_left: int) -> int:
        """How many of the request's next sequences fit."""
        first = request.num_packed
        within_tokens = np.searchsorted(request.offsets, request.offsets[first] + tokens_left, side="right") - 1
        return min(int(within_tokens) - first, sequences_left, request.num_sequences - first)
