"""What a tokenizing process counts: see README.md, "Metrics"."""

from __future__ import annotations

from collections.abc import Sequence

from rose_ensemble.metrics import SECONDS, MetricsBook
from rose_ensemble.score_step import ScoreInput
from rose_ensemble.texts import TokenInput
from rose_ensemble.tokenize_step import TokenizeInput


class TokenizeMetrics:
    """Counts calls, which may carry many requests each."""

    def __init__(self, book: MetricsBook) -> None:
        self._book = book
        self._requests = book.counter("rose_tokenize_requests_total", "Requests tokenized")
        self._texts = book.counter("rose_tokenize_texts_total", "Texts tokenized")
        self._refused = book.counter("rose_tokenize_refused_total", "Requests refused because every engine was full")
        self._seconds = book.histogram("rose_tokenize_seconds", "Time of one call, for all its requests", SECONDS)

    def done(self, requests: Sequence[TokenizeInput | ScoreInput], seconds: float) -> None:
        """A call has ended."""
        texts = sum(len(request.content) for request in requests if not isinstance(request.content, TokenInput))
        with self._book.lock:
            self._requests.add(len(requests))
            self._texts.add(texts)
            self._seconds.observe(seconds)

    def refused(self, num_requests: int) -> None:
        """Requests were turned away unread."""
        with self._book.lock:
            self._refused.add(num_requests)
