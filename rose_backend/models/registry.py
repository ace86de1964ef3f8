"""Which class serves which `model_type`. Adding an architecture is one file and one line here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rose_backend.errors import CheckpointError
from rose_backend.models.base import RaggedModel
from rose_backend.models.bert import Bert

_Builder = Callable[[Path, Mapping[str, Any], torch.device, torch.dtype], RaggedModel]

_MODELS: dict[str, _Builder] = {
    "bert": Bert,
}


def load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> RaggedModel:
    """Build the architecture a checkpoint names and load its weights.

    Raises:
        CheckpointError: the `model_type` is not served, or the files do not fit it.
    """
    values = json.loads((folder / "config.json").read_text())
    builder = _MODELS.get(values.get("model_type"))
    if builder is None:
        raise CheckpointError(
            f"{folder / 'config.json'}: model_type {values.get('model_type')!r} is not served; known: {sorted(_MODELS)}"
        )
    return builder(folder, values, device, dtype)
