"""Which class serves which `model_type`. Adding an architecture is one file and one line here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from rose_backend.errors import CheckpointError
from rose_backend.kernels.torch_ops import TorchOps
from rose_backend.models.base import ModelSource, RaggedModel
from rose_backend.models.bert import Bert
from rose_backend.models.qwen3 import Qwen3

_MODELS: dict[str, Callable[[ModelSource], RaggedModel]] = {
    "bert": Bert,
    "bidirectional_pplx_qwen3": Qwen3,
    "qwen3": Qwen3,
}


def served_types() -> tuple[str, ...]:
    """Every `model_type` there is a class for."""
    return tuple(sorted(_MODELS))


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
    if device.type == "cuda":
        from rose_backend.kernels.triton_ops import TritonOps  # the Triton language comes with CUDA builds of torch

        return builder(ModelSource(folder, values, device, dtype, TritonOps(device, dtype)))
    return builder(ModelSource(folder, values, device, dtype, TorchOps()))
