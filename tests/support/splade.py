"""Small random SPLADE checkpoints, written by sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from transformers import BertConfig, BertForMaskedLM

from tests.support.cases import VOCAB_SIZE
from tests.support.checkpoints import SHAPE, copy_tokenizer


def drawn_masked_lm(**values: Any) -> BertForMaskedLM:
    """Every parameter random, so that about half of all logits are above zero."""
    model = BertForMaskedLM(BertConfig(**{**SHAPE, **values})).float().eval()
    torch.manual_seed(6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.1)
    return model


def make_splade(
    folder: Path,
    minilm: Path,
    *,
    strategy: str = "max",
    activation: str = "relu",
    old: bool = False,
    **values: Any,
) -> Path:
    """With MiniLM's tokenizer.

    Args:
        folder: the checkpoint goes to a folder inside, which is returned.
        minilm: has the tokenizer.
        strategy: of pooling.
        activation: before the logarithm.
        old: whether the first module is that of old releases.
        values: of `config.json`.
    """
    bare, saved = folder / "bare", folder / "saved"
    drawn_masked_lm(vocab_size=VOCAB_SIZE, **values).save_pretrained(bare)
    copy_tokenizer(minilm, bare)
    first = MLMTransformer(str(bare)) if old else Transformer(str(bare), transformer_task="fill-mask")
    parts = [first, SpladePooling(strategy, activation)]  # type: ignore[arg-type]
    SparseEncoder(modules=parts, device="cpu").save(str(saved))
    return saved


def splade_library(folder: Path) -> SparseEncoder:
    return SparseEncoder(str(folder), device="cpu", local_files_only=True)
