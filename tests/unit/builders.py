"""Requests for tests, and a reply that remembers what it was called with."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from rose_backend.core import FLOAT, Float32Array, Request, Results
from rose_backend.errors import RoseError


class Answers:
    """A `Reply`; keeps every outcome, so that a second call shows."""

    def __init__(self) -> None:
        self.outcomes: list[Results | RoseError] = []
        self._called = threading.Event()

    def __call__(self, outcome: Results | RoseError) -> None:
        self.outcomes.append(outcome)
        self._called.set()

    def wait(self) -> Results | RoseError:
        assert self._called.wait(30), "no reply within 30 s"
        return self.outcomes[0]

    def vectors(self) -> Float32Array:
        outcome = self.wait()
        assert not isinstance(outcome, RoseError), outcome
        return outcome[FLOAT]


def request_of(sequences: Sequence[Sequence[int]], reply: Answers | None = None, *, normalize: bool = True) -> Request:
    """A request with these token ids."""
    flat = [token for sequence in sequences for token in sequence]
    lengths = [len(sequence) for sequence in sequences]
    return Request(np.array(flat, np.int32), np.array(lengths, np.int32), reply or Answers(), normalize)


def request_with_lengths(*lengths: int) -> Request:
    """A request whose ids count up from 0."""
    return Request(np.arange(sum(lengths), dtype=np.int32), np.array(lengths, np.int32), Answers())
