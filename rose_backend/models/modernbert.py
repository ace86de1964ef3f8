"""ModernBERT (gte-modernbert, modernbert-embed): pre-norm encoder, RoPE, GeGLU, most layers through a window.

Layer order and names follow the Hugging Face checkpoints (`modeling_modernbert.py` in transformers). The first layer
has no norm in front of its attention; there are no positions or token types to embed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.attention.base import Attentions, Geometry
from rose_backend.kernels.ops import Nonlinearity, Rotation
from rose_backend.models.base import ModelSource
from rose_backend.models.keys import refuse_causal, required
from rose_backend.models.layers import FULL, SLIDING, Linear, Norm, geometries_of, nonlinearity
from rose_backend.models.rotary import Rope, rotation_table
from rose_backend.weights import PREFIXES, Weights

_EVERY = 3  # every third layer sees everything, where the file does not say
_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


@dataclass(frozen=True)
class ModernBertConfig:
    """The keys of `config.json` that shape a ModernBERT encoder.

    Attributes:
        reach: how many tokens to the left and to the right a sliding layer sees; None: all of them.
        layer_types: `FULL` or `SLIDING`, for each layer.
        ropes: by layer type.
    """

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    activation: Nonlinearity
    reach: tuple[int, int] | None
    layer_types: tuple[str, ...]
    ropes: Mapping[str, Rope]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModernBertConfig:
        """Read the keys.

        Raises:
            CheckpointError: a key is missing, or asks for something this encoder does not do.
        """
        refuse_causal(values)
        most = int(required(values, "max_position_embeddings"))
        reach = int(values.get("local_attention", 128)) // 2
        return cls(
            vocab_size=int(required(values, "vocab_size")),
            hidden_size=int(required(values, "hidden_size")),
            num_attention_heads=int(required(values, "num_attention_heads")),
            max_position_embeddings=most,
            norm_eps=float(values.get("norm_eps", 1e-5)),
            norm_bias=bool(values.get("norm_bias", False)),
            attention_bias=bool(values.get("attention_bias", False)),
            mlp_bias=bool(values.get("mlp_bias", False)),
            activation=nonlinearity(str(values.get("hidden_activation", "gelu")), "hidden_activation"),
            reach=None if reach >= most - 1 else (reach, reach),
            layer_types=_layer_types(values),
            ropes={kind: _rope(values, kind) for kind in _THETAS},
        )


def _layer_types(values: Mapping[str, Any]) -> tuple[str, ...]:
    types = values.get("layer_types")
    if types is not None:
        return tuple(types)
    every = int(values.get("global_attn_every_n_layers", _EVERY))
    num_layers = int(required(values, "num_hidden_layers"))
    return tuple(SLIDING if index % every else FULL for index in range(num_layers))


def _rope(values: Mapping[str, Any], kind: str) -> Rope:
    """Of one layer type: nested in `rope_parameters` (transformers 5), or under a key each (older files)."""
    key, default = _THETAS[kind]
    nested = (values.get("rope_parameters") or {}).get(kind)
    if nested is None:
        nested = {**(values.get("rope_scaling") or {}), "rope_theta": values.get(key, default)}
    return Rope.from_json({**values, "rope_parameters": nested}, default)


@dataclass(frozen=True)
class _Layer:
    kind: int
    cos_sin: torch.Tensor  # [max_positions, head_dim] float32
    qkv: Linear
    attention_out: Linear
    mlp_norm: Norm
    gate_up: Linear  # what goes through the nonlinearity comes first
    down: Linear


class ModernBert:
    """A ModernBERT encoder; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        config = ModernBertConfig.from_json(source.values)
        weights = Weights(source.folder, "embeddings.tok_embeddings.weight", PREFIXES, source.device, source.dtype)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.num_token_types = 1
        self.rotates = True
        heads = config.num_attention_heads
        head_dim = config.hidden_size // heads
        full = Geometry(heads, heads, head_dim, False, source.dtype, source.device)
        self.geometries, self.layer_kinds = geometries_of(full, config.reach, config.layer_types)
        self._eps = config.norm_eps
        self._ops = source.ops
        self._activation = config.activation
        shape = (config.vocab_size, config.hidden_size)
        self._words = weights.take("embeddings.tok_embeddings.weight", shape=shape)
        self._embedding_norm = Norm.take(weights, "embeddings.norm", bias=config.norm_bias)
        tables = {
            kind: rotation_table(rope, head_dim, config.max_position_embeddings, source.device)
            for kind, rope in config.ropes.items()
        }
        self._layers = [
            _layer(weights, f"layers.{index}.", kind, tables[layer_type], config)
            for index, (kind, layer_type) in enumerate(zip(self.layer_kinds, config.layer_types, strict=True))
        ]
        # The norm that follows a layer's MLP belongs to the next layer; the last one's is the model's own.
        names = [f"layers.{index}.attn_norm" for index in range(1, len(self._layers))] + ["final_norm"]
        self._next_norms = [Norm.take(weights, name, bias=config.norm_bias) for name in names]

    def __call__(
        self,
        input_ids: torch.Tensor,
        attends: Attentions,
        rows: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,  # noqa: ARG002 (there are none)
    ) -> torch.Tensor:
        """See `RaggedModel`."""
        ops, eps, norm = self._ops, self._eps, self._embedding_norm
        positions = ops.positions(attends.layout.cu_seqlens, len(input_ids), self.max_positions)
        residual = ops.embed_layer_norm(input_ids, None, self._words, None, norm.weight, norm.bias, eps)
        x = residual
        for layer, after in zip(self._layers, self._next_norms, strict=True):
            rotation = Rotation(None, layer.cos_sin, positions, eps)
            mixed = attends[layer.kind](ops.linear(x, layer.qkv.weight, layer.qkv.bias), rotation)
            if rows is not None and layer is self._layers[-1]:
                mixed, residual = mixed.index_select(0, rows), residual.index_select(0, rows)
            out, middle, down = layer.attention_out, layer.mlp_norm, layer.down
            x = ops.linear_add_layer_norm(mixed, out.weight, residual, middle.weight, middle.bias, eps, out.bias)
            wide = ops.glu(x, layer.gate_up.weight, self._activation, layer.gate_up.bias)
            x = ops.linear_add_layer_norm(wide, down.weight, residual, after.weight, after.bias, eps, down.bias)
        return x


def _layer(weights: Weights, prefix: str, kind: int, cos_sin: torch.Tensor, config: ModernBertConfig) -> _Layer:
    heads = config.num_attention_heads
    shape = (3 * heads * (config.hidden_size // heads), config.hidden_size)
    return _Layer(
        kind=kind,
        cos_sin=cos_sin,
        qkv=Linear.take(weights, prefix + "attn.Wqkv", bias=config.attention_bias, shape=shape),
        attention_out=Linear.take(weights, prefix + "attn.Wo", bias=config.attention_bias),
        mlp_norm=Norm.take(weights, prefix + "mlp_norm", bias=config.norm_bias),
        gate_up=Linear.take(weights, prefix + "mlp.Wi", bias=config.mlp_bias),
        down=Linear.take(weights, prefix + "mlp.Wo", bias=config.mlp_bias),
    )
