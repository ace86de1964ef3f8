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
from rose_backend.models.gemma3 import Gemma3
from rose_backend.models.llama import Llama
from rose_backend.models.mistral import Mistral
from rose_backend.models.modernbert import ModernBert
from rose_backend.models.nomic_bert import NomicBert
from rose_backend.models.qwen2 import Qwen2
from rose_backend.models.qwen3 import Qwen3
from rose_backend.models.roberta import Roberta

_MODELS: dict[str, Callable[[ModelSource], RaggedModel]] = {
    "bert": Bert,
    "bidirectional_pplx_qwen3": Qwen3,
    "camembert": Roberta,
    "gemma3_text": Gemma3,
    "llama": Llama,
    "llama_bidirec": Llama,
    "mistral": Mistral,
    "modernbert": ModernBert,
    "nomic_bert": NomicBert,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "roberta": Roberta,
    "xlm-roberta": Roberta,
}

_LEAVES_FLOAT16 = frozenset({"bidirectional_pplx_qwen3", "gemma3_text"})  # activations beyond 65,504 become NaN


def served_types() -> tuple[str, ...]:
    """Every `model_type` there is a class for."""
    return tuple(sorted(_MODELS))


def load_model(
    folder: Path, device: torch.device, dtype: torch.dtype, *, allow_unsafe_dtype: bool = False
) -> RaggedModel:
    """Build the architecture a checkpoint names and load its weights.

    Raises:
        CheckpointError: the `model_type` is not served, or not in this dtype, or the files do not fit it.
    """
    values = json.loads((folder / "config.json").read_text())
    kind = values.get("model_type")
    builder = _MODELS.get(kind)
    if builder is None:
        raise CheckpointError(f"{folder / 'config.json'}: model_type {kind!r} is not served; known: {sorted(_MODELS)}")
    if kind in _LEAVES_FLOAT16 and dtype is torch.float16 and not allow_unsafe_dtype:
        raise CheckpointError(
            f"{folder / 'config.json'}: model_type {kind!r} leaves the range of float16; "
            "use bfloat16 or float32, or set allow_unsafe_dtype"
        )
    if device.type == "cuda":
        from rose_backend.kernels.triton_ops import TritonOps  # the Triton language comes with CUDA builds of torch

        return builder(ModelSource(folder, values, device, dtype, TritonOps(device, dtype)))
    return builder(ModelSource(folder, values, device, dtype, TorchOps()))
