"""The independent source of right vectors: sentence-transformers on the same files, one text at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch


class Oracle:
    """Lone vectors of texts in float32 on the CPU, computed once each.

    Args:
        folder: the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        # Half a minute, which not every process that collects tests should spend.
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
        self._known: dict[str, npt.NDArray[np.float32]] = {}

    def vector(self, text: str) -> npt.NDArray[np.float32]:
        """`[dim]`."""
        if text not in self._known:
            self._known[text] = self.model.encode([text], batch_size=1, show_progress_bar=False)[0]
        return self._known[text]

    def vectors(self, texts: Iterable[str]) -> npt.NDArray[np.float32]:
        """`[num_texts, dim]`, no text sharing a batch with another."""
        return np.stack([self.vector(text) for text in texts])

    def token_count(self, text: str) -> int:
        """Tokens of the text, special ones included."""
        return len(self.model.tokenizer(text)["input_ids"])

    def unnormalized(self, text: str) -> npt.NDArray[np.float32]:
        """`[dim]`: transformer and pooling alone, without the checkpoint's last module."""
        features = self.model.tokenizer([text], return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            pooled = self.model[1](self.model[0](dict(features)))["sentence_embedding"]
        return pooled[0].numpy()
