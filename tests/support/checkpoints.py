"""Small checkpoints made on the spot: random BERTs with their files, as transformers and its kin write them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

SHAPE = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def make_bert(folder: Path, *, seed: int = 0, **config: Any) -> BertModel:
    """Save a random BERT to `folder` and return it, in float32 and evaluation mode.

    Every parameter is drawn, norms and biases too: left at one and zero they would hide their being mixed up.
    """
    model = BertModel(BertConfig(**{**SHAPE, **config}), add_pooling_layer=False).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.normal_(centre, 0.2, generator=generator)
    model.save_pretrained(folder)
    return model


def write_modules(folder: Path, *, normalize: bool = True, pooling: dict[str, Any] | None = None) -> None:
    """`modules.json` of today's sentence-transformers, and the pooling module's file."""
    kinds = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
    kinds += ["sentence_transformer.modules.normalize.Normalize"] * normalize
    paths = ["", "1_Pooling", "2_Normalize"]
    entries = [
        {"idx": index, "name": str(index), "path": paths[index], "type": f"sentence_transformers.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", entries)
    write_json(folder / "1_Pooling" / "config.json", pooling or {"pooling_mode": "mean"})


def copy_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer files of a real checkpoint; the model must then have its vocabulary's size."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copyfile(source / name, folder / name)
