"""BERT (MiniLM, bge-*-en, e5): post-norm encoder with learned positions, exact GELU, biases everywhere.

Layer order and names follow the Hugging Face checkpoints (`modeling_bert.py` in transformers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from rose_backend.attention.base import Attentions, Geometry, RaggedLayout
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Ops
from rose_backend.models.base import ModelSource
from rose_backend.models.keys import refuse_causal, required
from rose_backend.models.layers import Linear, Norm
from rose_backend.models.lengths import usable_length
from rose_backend.weights import PREFIXES, Weights

_Activated = Callable[[Ops, torch.Tensor, Linear], torch.Tensor]
_ACTIVATIONS: dict[str, _Activated] = {
    "gelu": lambda ops, x, up: ops.linear_gelu(x, up.weight, up.bias),
    "gelu_new": lambda _, x, up: F.gelu(up(x), approximate="tanh"),
    "gelu_pytorch_tanh": lambda _, x, up: F.gelu(up(x), approximate="tanh"),
    "relu": lambda _, x, up: F.relu(up(x)),
    "silu": lambda _, x, up: F.silu(up(x)),
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
        refuse_causal(values)
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise CheckpointError(
                f"config.json: position_embedding_type {values['position_embedding_type']!r}: "
                f"only 'absolute' is served for model_type {values.get('model_type')!r}"
            )
        config = cls(
            vocab_size=int(required(values, "vocab_size")),
            hidden_size=int(required(values, "hidden_size")),
            num_hidden_layers=int(required(values, "num_hidden_layers")),
            num_attention_heads=int(required(values, "num_attention_heads")),
            max_position_embeddings=int(required(values, "max_position_embeddings")),
            layer_norm_eps=float(values.get("layer_norm_eps", 1e-12)),
            hidden_act=str(values.get("hidden_act", "gelu")),
        )
        if config.hidden_act not in _ACTIVATIONS:
            raise CheckpointError(f"config.json: hidden_act {config.hidden_act!r} is not one of {sorted(_ACTIVATIONS)}")
        return config


@dataclass(frozen=True)
class _Layer:
    qkv: Linear
    attention_out: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    mlp_norm: Norm


class Bert:
    """A BERT encoder; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        config = BertConfig.from_json(source.values)
        weights = Weights(source.folder, "embeddings.word_embeddings.weight", PREFIXES, source.device, source.dtype)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = usable_length(source.values)
        self.rotates = False
        heads = config.num_attention_heads
        self.geometries: tuple[Geometry, ...] = (
            Geometry(heads, heads, config.hidden_size // heads, False, source.dtype, source.device),
        )
        self.layer_kinds = (0,) * config.num_hidden_layers
        self._eps = config.layer_norm_eps
        self._ops = source.ops
        self._activated = _ACTIVATIONS[config.hidden_act]
        width = config.hidden_size
        self._words = weights.take("embeddings.word_embeddings.weight", shape=(config.vocab_size, width))
        # A row for every position and type: one look-up does for both. Not even type 0's row is zero.
        types = weights.take("embeddings.token_type_embeddings.weight")
        shape = (config.max_position_embeddings, width)
        places = weights.take("embeddings.position_embeddings.weight", shape=shape)
        self.num_token_types = len(types)
        self._table_positions = len(places)
        self._places = (types[:, None] + places).flatten(0, 1)
        self._embedding_norm = Norm.take(weights, "embeddings.LayerNorm")
        self._layers = [_layer(weights, f"encoder.layer.{index}.", config) for index in range(config.num_hidden_layers)]

    def __call__(
        self,
        input_ids: torch.Tensor,
        attends: Attentions,
        rows: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `RaggedModel`."""
        ops, eps, norm = self._ops, self._eps, self._embedding_norm
        places = self._positions(input_ids, attends.layout)
        if token_types is not None and self.num_token_types > 1:
            places = places.add(token_types, alpha=self._table_positions)
        attend = attends[0]
        x = ops.embed_layer_norm(input_ids, places, self._words, self._places, norm.weight, norm.bias, eps)
        for layer in self._layers:
            mixed = attend(layer.qkv(x))
            if rows is not None and layer is self._layers[-1]:
                mixed, x = mixed.index_select(0, rows), x.index_select(0, rows)
            mixed = layer.attention_out(mixed)
            x = ops.add_layer_norm(mixed, x, layer.attention_norm.weight, layer.attention_norm.bias, eps)
            wide = self._activated(ops, x, layer.up)
            x = ops.add_layer_norm(layer.down(wide), x, layer.mlp_norm.weight, layer.mlp_norm.bias, eps)
        return x

    def _positions(self, input_ids: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Each token's row in the table of positions, `[total_tokens]` int32."""
        return self._ops.positions(layout.cu_seqlens, len(input_ids), self.max_positions)


def _layer(weights: Weights, prefix: str, config: BertConfig) -> _Layer:
    own, heads = prefix + "attention.self.", config.num_attention_heads
    shape = (3 * heads * (config.hidden_size // heads), config.hidden_size)
    return _Layer(
        qkv=Linear.take(weights, own + "query", own + "key", own + "value", shape=shape),
        attention_out=Linear.take(weights, prefix + "attention.output.dense"),
        attention_norm=Norm.take(weights, prefix + "attention.output.LayerNorm"),
        up=Linear.take(weights, prefix + "intermediate.dense"),
        down=Linear.take(weights, prefix + "output.dense"),
        mlp_norm=Norm.take(weights, prefix + "output.LayerNorm"),
    )
