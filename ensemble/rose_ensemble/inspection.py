"""What serving a checkpoint would do, as plain values: for people and for JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rose_backend.config import DenseConfig, ScoreHead, SpladeConfig
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.scoring import Scoring

_DTYPE = "float32 on the CPU, bfloat16 on a GPU"


def inspection(folder: Path, checkpoint: Checkpoint, served_types: tuple[str, ...]) -> dict[str, Any]:
    """Everything the files decided, by name, in the order of a text's way.

    Args:
        folder: the checkpoint; files are named relative to it.
        checkpoint: what was read there.
        served_types: every `model_type` there is code for.
    """
    head, matryoshka = checkpoint.head, checkpoint.matryoshka
    return {
        "checkpoint": str(folder),
        "architecture": checkpoint.model_type,
        "served": checkpoint.model_type in served_types,
        "prompts": dict(checkpoint.prompts),
        "default_prompt_name": checkpoint.default_prompt_name,
        "lower_case": checkpoint.lower_case,
        "max_length": checkpoint.max_length,
        "pooling": [mode.value for mode in head.modes] if head.splade is None else [_splade(head.splade)],
        "include_prompt": head.include_prompt,
        "dense": [_dense(folder, dense) for dense in head.dense],
        "normalize": head.normalize,
        "dim": matryoshka.dim,
        "dimensions": {
            "allowed": str(matryoshka) if matryoshka.sizes else None,
            "default": matryoshka.default or matryoshka.dim,
            "known_from": matryoshka.origin or None,
        },
        "codes": {
            "rules": "pplx-embed" if head.tanh_codes else "sentence-transformers",
            "int8": head.tanh_codes or bool(head.ranges),
        },
        "further_heads": [
            name
            for name, path in (("sparse", head.tokens.sparse), ("multi-vector", head.tokens.multi_vector))
            if path is not None
        ],
        "similarity": checkpoint.similarity,
        "scoring": None if checkpoint.scoring is None else _scoring(checkpoint.scoring),
        "dtype": {"stored": checkpoint.stored_dtype, "computed": _DTYPE},
        "files": [str(path.relative_to(folder)) for path in checkpoint.files],
    }


def _scoring(scoring: Scoring) -> dict[str, Any]:
    head, template = scoring.config, scoring.template
    return {
        "architecture": scoring.architecture,
        "pooling": head.pooling.value,
        "head": head.head.value,
        "token_ids": list(head.token_ids) if head.head is ScoreHead.TOKENS else None,
        "activation": head.activation.value,
        "token_types": head.token_types,
        "truncation": "body" if template else scoring.strategy,
        "instruction": template.instruction if template else None,
    }


def _splade(splade: SpladeConfig) -> str:
    logarithm = "log1p(log1p(relu))" if splade.twice else "log1p(relu)"
    return f"{'max' if splade.largest else 'sum'} of {logarithm} of the vocabulary's logits"


def _dense(folder: Path, dense: DenseConfig) -> dict[str, Any]:
    return {
        "folder": str(dense.folder.relative_to(folder)),
        "in_features": dense.in_features,
        "out_features": dense.out_features,
        "bias": dense.bias,
        "activation": dense.activation.value,
        "residual": dense.residual,
    }
