"""BERT (MiniLM, bge-*-en, e5): post-norm encoder with learned positions, exact GELU, biases everywhere.

Layer order and names follow the Hugging Face checkpoints (`modeling_bert.py` in transformers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from rose_backend.attention.base import Attend
from rose_backend.errors import CheckpointError
from rose_backend.weights import Weights

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class BertConfig:
    """The keys of `config.json` that shape a BERT encoder."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float
    hidden_act: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BertConfig:
        """Read the keys.

        Raises:
            CheckpointError: a key is missing, or asks for something this encoder does not do.
        """
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise CheckpointError(
                f"config.json: position_embedding_type {values['position_embedding_type']!r}: "
                "only 'absolute' is served for model_type 'bert'"
            )
        try:
            config = cls(
                vocab_size=int(values["vocab_size"]),
                hidden_size=int(values["hidden_size"]),
                num_hidden_layers=int(values["num_hidden_layers"]),
                num_attention_heads=int(values["num_attention_heads"]),
                max_position_embeddings=int(values["max_position_embeddings"]),
                layer_norm_eps=float(values.get("layer_norm_eps", 1e-12)),
                hidden_act=str(values.get("hidden_act", "gelu")),
            )
        except KeyError as missing:
            raise CheckpointError(f"config.json has no key {missing}") from None
        if config.hidden_act not in _ACTIVATIONS:
            raise CheckpointError(f"config.json: hidden_act {config.hidden_act!r} is not one of {sorted(_ACTIVATIONS)}")
        return config


@dataclass(frozen=True)
class _Linear:
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor  # [out]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class _Norm:
    weight: torch.Tensor  # [hidden]
    bias: torch.Tensor  # [hidden]
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class _Layer:
    qkv: _Linear
    attention_out: _Linear
    attention_norm: _Norm
    up: _Linear
    down: _Linear
    mlp_norm: _Norm


class Bert:
    """A BERT encoder; see `models.base.RaggedModel` for the call.

    Args:
        folder: the checkpoint, with safetensors weights.
        values: its `config.json`.
        device: where to compute.
        dtype: what to compute in.
    """

    def __init__(self, folder: Path, values: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> None:
        config = BertConfig.from_json(values)
        weights = Weights(folder, "embeddings.word_embeddings.weight", ("", "bert."), device, dtype)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self._num_heads = config.num_attention_heads
        self._activation = _ACTIVATIONS[config.hidden_act]
        self._words = weights.take("embeddings.word_embeddings.weight")
        # Single texts are all of type 0; its row is not zero, so it is added to every position once, here.
        types = weights.take("embeddings.token_type_embeddings.weight")
        self._positions = weights.take("embeddings.position_embeddings.weight") + types[0]
        self._embedding_norm = _norm(weights, "embeddings.LayerNorm", config)
        self._layers = [_layer(weights, f"encoder.layer.{i}.", config) for i in range(config.num_hidden_layers)]

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See `RaggedModel`."""
        x = F.embedding(input_ids, self._words).add_(F.embedding(positions, self._positions))
        x = self._embedding_norm(x)
        for layer in self._layers:
            q, k, v = layer.qkv(x).view(len(x), 3, self._num_heads, -1).unbind(1)
            mixed = layer.attention_out(attend(q, k, v).flatten(1))
            x = layer.attention_norm(mixed.add_(x))
            x = layer.mlp_norm(layer.down(self._activation(layer.up(x))).add_(x))
        return x


def _norm(weights: Weights, name: str, config: BertConfig) -> _Norm:
    return _Norm(weights.take(name + ".weight"), weights.take(name + ".bias"), config.layer_norm_eps)


def _linear(weights: Weights, *names: str) -> _Linear:
    return _Linear(
        weights.stack(*(name + ".weight" for name in names)),
        weights.stack(*(name + ".bias" for name in names)),
    )


def _layer(weights: Weights, prefix: str, config: BertConfig) -> _Layer:
    own = prefix + "attention.self."
    return _Layer(
        qkv=_linear(weights, own + "query", own + "key", own + "value"),
        attention_out=_linear(weights, prefix + "attention.output.dense"),
        attention_norm=_norm(weights, prefix + "attention.output.LayerNorm", config),
        up=_linear(weights, prefix + "intermediate.dense"),
        down=_linear(weights, prefix + "output.dense"),
        mlp_norm=_norm(weights, prefix + "output.LayerNorm", config),
    )
