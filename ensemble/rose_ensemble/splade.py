"""What a SPLADE checkpoint's files say: a masked language model then sentence-transformers' `SpladePooling`."""

from __future__ import annotations

from pathlib import Path

from rose_backend.config import Activation, SpladeConfig
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint_files import CheckpointFiles, flag, refuse_others, refuse_unknown

MASKED_TRANSFORMER, SPLADE_POOLING = "MLMTransformer", "SpladePooling"
"""Kinds of modules; today's release writes a plain Transformer in place of the first."""

_POOLING_KEYS = ("pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension")
_INNER = {"gelu": Activation.GELU, "relu": Activation.RELU, "silu": Activation.SILU}


def read_splade(files: CheckpointFiles, transformer: Path, pooling: Path) -> SpladeConfig:
    """Read a checkpoint's pooling, and the head that it pools.

    Args:
        files: reads them.
        transformer: folder of the masked language model.
        pooling: of the module after it.

    Raises:
        CheckpointError: the files ask for something that is not served; names it.
    """
    path, pooling_path = transformer / "config.json", pooling / "config.json"
    config, values = files.mapping(path), files.mapping(pooling_path)
    refuse_unknown(pooling_path, values, _POOLING_KEYS)
    refuse_others(pooling_path, values, "pooling_strategy", ("max", "sum"))
    refuse_others(pooling_path, values, "activation_function", ("relu", "log1p_relu"))
    name = (config.get("architectures") or [None])[0]
    if name != "BertForMaskedLM":
        raise CheckpointError(
            f"{path}: architecture {name!r} is not served before SpladePooling; known: BertForMaskedLM"
        )
    inner = config.get("hidden_act", "gelu")
    if inner not in _INNER:
        raise CheckpointError(f"{path}: hidden_act {inner!r} is not one of {sorted(_INNER)} before SpladePooling")
    return SpladeConfig(
        largest=values.get("pooling_strategy", "max") == "max",
        twice=values.get("activation_function") == "log1p_relu",
        inner=_INNER[inner],
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
        tied=flag(path, config, "tie_word_embeddings", default=True),
    )
