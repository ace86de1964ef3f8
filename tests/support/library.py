"""sentence-transformers itself: what it writes, and what it makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests.support.cases import VOCAB_SIZE
from tests.support.checkpoints import SHAPE, copy_tokenizer, make_bert

HIDDEN = int(SHAPE["hidden_size"])


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


def edit_json(path: Path, **values: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    stored = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}))
