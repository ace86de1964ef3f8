"""What an architecture offers the engine. Signatures only."""

from __future__ import annotations

from typing import Protocol

import torch

from rose_backend.attention.base import Attend


class RaggedModel(Protocol):
    """A transformer over sequences laid back to back.

    Attributes:
        hidden_size: width of a token vector.
        vocab_size: token ids are below it.
        max_positions: longest sequence the weights allow, in tokens.
    """

    hidden_size: int
    vocab_size: int
    max_positions: int

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run all layers.

        Args:
            input_ids: `[total_tokens]` int.
            positions: `[total_tokens]` int, from 0 in every sequence.
            attend: the batch's planned attention.

        Returns:
            `[total_tokens, hidden_size]`, the last layer's output after any final norm.
        """
