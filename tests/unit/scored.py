"""Pairs through tokenizer and engine without a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rose_backend.config import EngineConfig
from rose_backend.core import Request
from rose_backend.engine import RoseEngine
from rose_backend.packer import TokenPacker
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.score_step import ScoreInput, ScoreStep
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenize_step import TokenizeOutput
from tests.unit.builders import Answers


class Scored:
    """A reranker's tokenizer and engine on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = read_checkpoint(folder)
        assert self.checkpoint.scoring is not None
        self.step = ScoreStep(self.checkpoint, TextLimits())
        score, head = self.checkpoint.scoring.config, self.checkpoint.head
        self._engine = RoseEngine(EngineConfig(self.checkpoint.folder, self.checkpoint.max_length, head, score=score))

    def tokens(self, query: str, documents: Sequence[str], **options: Any) -> list[list[int]]:
        """Token ids of every pair."""
        work = self._tokenized([(query, documents)], options)[0].work
        return [part.tolist() for part in np.split(work.input_ids, np.cumsum(work.lengths)[:-1])]

    def logits(self, query: str, documents: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
        """All pairs in one batch, `[num_documents]`."""
        return self.together([(query, documents)], **options)[0]

    def together(self, requests: Sequence[tuple[str, Sequence[str]]], **options: Any) -> list[npt.NDArray[np.float32]]:
        """Several requests in one batch."""
        queue = deque(
            Request(output.work.input_ids, output.work.lengths, Answers(), False, fields=output.work.fields)
            for output in self._tokenized(requests, options)
        )
        batch = TokenPacker(100_000, 1_000).take(queue)
        assert batch is not None
        assert not queue
        rows = np.empty((batch.num_sequences, self._engine.dim), np.float32)
        rows[batch.order] = self._engine.step(batch).numpy()
        return np.split(rows[:, 0], np.cumsum([len(documents) for _, documents in requests])[:-1])

    def _tokenized(
        self, requests: Sequence[tuple[str, Sequence[str]]], options: dict[str, Any]
    ) -> list[TokenizeOutput]:
        asked = RequestOptions(**options)
        outputs = self.step.run([ScoreInput(query, list(documents), asked, 0) for query, documents in requests])
        assert all(isinstance(output, TokenizeOutput) for output in outputs), outputs
        return outputs  # type: ignore[return-value]
