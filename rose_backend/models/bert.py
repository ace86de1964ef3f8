"""BERT (MiniLM, bge-*-en, e5): post-norm encoder with learned positions, exact GELU, biases everywhere.

Layer order and names follow the Hugging Face checkpoints (`modeling_bert.py` in transformers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from rose_backend.attention.base import Attention, Geometry
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Ops
from rose_backend.models.base import ModelSource
from rose_backend.weights import Weights

_Activation = Callable[[Ops, torch.Tensor], torch.Tensor]
_ACTIVATIONS: dict[str, _Activation] = {
    "gelu": lambda ops, x: ops.gelu(x),
    "gelu_new": lambda _, x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda _, x: F.gelu(x, approximate="tanh"),
    "relu": lambda _, x: F.relu(x),
    "silu": lambda _, x: F.silu(x),
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


@dataclass(frozen=True)
class _Layer:
    qkv: _Linear
    attention_out: _Linear
    attention_norm: _Norm
    up: _Linear
    down: _Linear
    mlp_norm: _Norm


class Bert:
    """A BERT encoder; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        config = BertConfig.from_json(source.values)
        weights = Weights(
            source.folder, "embeddings.word_embeddings.weight", ("", "bert."), source.device, source.dtype
        )
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.num_layers = config.num_hidden_layers
        self.rotates = False
        heads = config.num_attention_heads
        self.geometry = Geometry(heads, heads, config.hidden_size // heads, False, source.dtype, source.device)
        self._eps = config.layer_norm_eps
        self._ops = source.ops
        self._activation = _ACTIVATIONS[config.hidden_act]
        self._words = weights.take("embeddings.word_embeddings.weight")
        # Single texts are all of type 0; its row is not zero, so it is added to every position once, here.
        types = weights.take("embeddings.token_type_embeddings.weight")
        self._places = weights.take("embeddings.position_embeddings.weight") + types[0]
        self._embedding_norm = _norm(weights, "embeddings.LayerNorm")
        self._layers = [_layer(weights, f"encoder.layer.{index}.") for index in range(config.num_hidden_layers)]

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attention, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `RaggedModel`."""
        ops, eps, norm = self._ops, self._eps, self._embedding_norm
        x = ops.embed_layer_norm(input_ids, positions, self._words, self._places, norm.weight, norm.bias, eps)
        for layer in self._layers:
            mixed = attend(layer.qkv(x))
            if rows is not None and layer is self._layers[-1]:
                mixed, x = mixed.index_select(0, rows), x.index_select(0, rows)
            mixed = layer.attention_out(mixed)
            x = ops.add_layer_norm(mixed, x, layer.attention_norm.weight, layer.attention_norm.bias, eps)
            wide = self._activation(ops, layer.up(x))
            x = ops.add_layer_norm(layer.down(wide), x, layer.mlp_norm.weight, layer.mlp_norm.bias, eps)
        return x


def _norm(weights: Weights, name: str) -> _Norm:
    return _Norm(weights.take(name + ".weight"), weights.take(name + ".bias"))


def _linear(weights: Weights, *names: str) -> _Linear:
    return _Linear(
        weights.stack(*(name + ".weight" for name in names)),
        weights.stack(*(name + ".bias" for name in names)),
    )


def _layer(weights: Weights, prefix: str) -> _Layer:
    own = prefix + "attention.self."
    return _Layer(
        qkv=_linear(weights, own + "query", own + "key", own + "value"),
        attention_out=_linear(weights, prefix + "attention.output.dense"),
        attention_norm=_norm(weights, prefix + "attention.output.LayerNorm"),
        up=_linear(weights, prefix + "intermediate.dense"),
        down=_linear(weights, prefix + "output.dense"),
        mlp_norm=_norm(weights, prefix + "output.LayerNorm"),
    )
