"""Texts through tokenizer and engine without a server, and the same files in sentence-transformers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from rose_backend.config import EngineConfig
from rose_backend.core import Request
from rose_backend.engine import RoseEngine
from rose_backend.packer import TokenPacker
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep
from tests.support.cases import VOCAB_SIZE
from tests.support.checkpoints import SHAPE, copy_tokenizer, make_bert
from tests.unit.builders import Answers

HIDDEN = int(SHAPE["hidden_size"])


class Served:
    """A checkpoint's tokenizer and engine on the CPU."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._step = TokenizeStep(checkpoint, TextLimits())
        self._engine = RoseEngine(EngineConfig(checkpoint.folder, checkpoint.max_length, checkpoint.head))

    def embed(self, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
        """All texts in one batch, `[num_texts, dim]`."""
        [vectors] = self.embed_together([(texts, RequestOptions(**options))])
        return vectors

    def embed_together(self, requests: Sequence[tuple[Sequence[str], RequestOptions]]) -> list[npt.NDArray[np.float32]]:
        """Several requests in one batch; each one's `[num_texts, dim]`, cut to its dimensions."""
        inputs = [TokenizeInput(list(texts), (1, len(texts)), options, 0) for texts, options in requests]
        wanted = [self.checkpoint.matryoshka.wanted(options.dimensions) for _, options in requests]
        queue: deque[Request] = deque()
        for output, (_, options), dims in zip(self._step.run(inputs), requests, wanted, strict=True):
            assert isinstance(output, TokenizeOutput), output
            normalize = self.checkpoint.head.normalize if options.normalize is None else options.normalize
            work = output.work
            queue.append(Request(work.input_ids, work.lengths, Answers(), normalize, dims=dims, fields=work.fields))
        batch = TokenPacker(10_000, 1_000).take(queue)
        assert batch is not None
        assert not queue
        rows = np.empty((batch.num_sequences, self._engine.dim), np.float32)
        rows[batch.order] = self._engine.step(batch).numpy()
        parts = np.split(rows, np.cumsum([len(texts) for texts, _ in requests])[:-1])
        return [part[:, : dims or None] for part, dims in zip(parts, wanted, strict=True)]


def library(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()


def alone(model: SentenceTransformer, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
    """The library's vectors, no text sharing a batch with another."""
    return np.concatenate([model.encode([text], show_progress_bar=False, **options) for text in texts])


def save_with_library(
    folder: Path,
    tokenizer: Path,
    *,
    pooling: str | Sequence[str] = "mean",
    include_prompt: bool = True,
    dense: Sequence[Dense] = (),
    normalize: bool = True,
    max_length: int | None = None,
    safetensors: bool = True,
) -> Path:
    """A random BERT with these modules, written by the library itself.

    Args:
        folder: the checkpoint goes to a folder inside, which is returned.
        tokenizer: a checkpoint with a tokenizer of `VOCAB_SIZE`.
        pooling: mode or modes.
        include_prompt: of the pooling module.
        dense: projections; their weights are drawn here.
        normalize: whether there is a Normalize module.
        max_length: `max_seq_length`.
        safetensors: or torch's own format, for the modules.
    """
    bare, saved = folder / "bare", folder / "saved"
    make_bert(bare, vocab_size=VOCAB_SIZE)
    copy_tokenizer(tokenizer, bare)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in (parameter for module in dense for parameter in module.parameters()):
            parameter.normal_(0.0, 0.3, generator=generator)
    modules = [
        Transformer(str(bare), max_seq_length=max_length),
        Pooling(HIDDEN, tuple([pooling] if isinstance(pooling, str) else pooling), include_prompt=include_prompt),
        *dense,
        *([Normalize()] if normalize else []),
    ]
    SentenceTransformer(modules=modules, device="cpu").save(str(saved), create_model_card=False)
    if not safetensors:
        for index, module in enumerate(dense):
            place = saved / f"{2 + index}_Dense"
            (place / "model.safetensors").unlink()
            module.save(str(place), safe_serialization=False)
    return saved
