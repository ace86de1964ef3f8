"""Gemma 3 text models (EmbeddingGemma): four norms a layer, most layers through a window, two rotations.

Layer order and names follow the Hugging Face checkpoints (`modeling_gemma3.py` in transformers). Norms scale by one
plus their weight, in float32; what attention and MLP give is normed before it is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.attention.base import Attentions, Geometry
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Nonlinearity, Rotation
from rose_backend.models.base import ModelSource
from rose_backend.models.keys import refuse_others, required
from rose_backend.models.layers import FULL, SLIDING, geometries_of, nonlinearity
from rose_backend.models.rotary import Rope, rotation_table
from rose_backend.weights import PREFIXES, Weights

_PATTERN = 6  # every sixth layer sees everything, where the file does not say
_THETAS = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


@dataclass(frozen=True)
class Gemma3Config:
    """The keys of `config.json` that shape a Gemma 3 text model.

    Attributes:
        reach: how many tokens to the left and to the right a sliding layer sees; None: all of them.
        layer_types: `FULL` or `SLIDING`, for each layer.
        ropes: by layer type.
        score_scale: what scores are multiplied with.
    """

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    causal: bool
    reach: tuple[int, int] | None
    layer_types: tuple[str, ...]
    ropes: Mapping[str, Rope]
    score_scale: float
    activation: Nonlinearity

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Gemma3Config:
        """Read the keys.

        Raises:
            CheckpointError: a key is missing, or asks for something this model does not do.
        """
        refuse_others(values, "attention_bias", False)
        refuse_others(values, "attn_logit_softcapping")
        most = int(required(values, "max_position_embeddings"))
        causal = not values.get("use_bidirectional_attention", False)
        if causal:  # the one switch whose window is known
            refuse_others(values, "is_causal", True)
        return cls(
            vocab_size=int(required(values, "vocab_size")),
            hidden_size=int(required(values, "hidden_size")),
            num_attention_heads=int(required(values, "num_attention_heads")),
            num_key_value_heads=int(required(values, "num_key_value_heads")),
            head_dim=int(required(values, "head_dim")),
            max_position_embeddings=most,
            rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            causal=causal,
            reach=_reach(values, most, causal=causal),
            layer_types=_layer_types(values),
            ropes={kind: _rope(values, kind) for kind in _THETAS},
            score_scale=float(required(values, "query_pre_attn_scalar")) ** -0.5,
            activation=nonlinearity(str(values.get("hidden_activation", "gelu_pytorch_tanh")), "hidden_activation"),
        )


def _reach(values: Mapping[str, Any], max_positions: int, *, causal: bool) -> tuple[int, int] | None:
    """A causal window counts the token itself; a bidirectional one is the width of both sides together."""
    window = int(required(values, "sliding_window"))
    if not causal and window % 2:
        # transformers 4 saved models with its own half plus one, and halves that again when it loads them.
        raise CheckpointError(
            f"config.json: sliding_window {window} is odd, so halved once already; write {2 * (window - 1)}"
        )
    reach = (window - 1, 0) if causal else (window // 2, window // 2)
    return None if reach[0] >= max_positions - 1 else reach


def _layer_types(values: Mapping[str, Any]) -> tuple[str, ...]:
    types = values.get("layer_types")
    if types is not None:
        return tuple(types)
    pattern = int(values.get("sliding_window_pattern") or values.get("_sliding_window_pattern") or _PATTERN)
    num_layers = int(required(values, "num_hidden_layers"))
    return tuple(SLIDING if (index + 1) % pattern else FULL for index in range(num_layers))


def _rope(values: Mapping[str, Any], kind: str) -> Rope:
    """Of one layer type: nested in `rope_parameters` (transformers 5), or under a key each (older files)."""
    key, default = _THETAS[kind]
    nested = (values.get("rope_parameters") or {}).get(kind)
    if nested is None:
        scaling = values.get("rope_scaling") if kind == FULL else None
        nested = {**(scaling or {}), "rope_theta": values.get(key, default)}
    return Rope.from_json({**values, "rope_parameters": nested}, default)


@dataclass(frozen=True)
class _Layer:
    kind: int
    cos_sin: torch.Tensor  # [max_positions, head_dim] float32
    input_norm: torch.Tensor  # [hidden] float32, as all norms
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qk_norms: torch.Tensor  # [2, head_dim]
    attention_out: torch.Tensor  # [hidden, heads * head_dim]
    mixed_norm: torch.Tensor  # [hidden]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]
    down_norm: torch.Tensor  # [hidden]


class Gemma3:
    """A Gemma 3 text model without its language-model head; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        config = Gemma3Config.from_json(source.values)
        weights = Weights(source.folder, "embed_tokens.weight", PREFIXES, source.device, source.dtype)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.num_token_types = 1
        self.rotates = True
        full = Geometry(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.causal,
            source.dtype,
            source.device,
            score_scale=config.score_scale,
        )
        self.geometries, self.layer_kinds = geometries_of(full, config.reach, config.layer_types)
        self._eps = config.rms_norm_eps
        self._ops = source.ops
        self._activation = config.activation
        # The factor is rounded to the weights' dtype first: 27.75 in bfloat16, not the square root of 768.
        words = weights.take("embed_tokens.weight", shape=(config.vocab_size, config.hidden_size))
        self._words = words.mul_(torch.tensor(config.hidden_size**0.5, dtype=words.dtype, device=words.device))
        tables = {
            kind: rotation_table(rope, config.head_dim, config.max_position_embeddings, source.device)
            for kind, rope in config.ropes.items()
        }
        self._layers = [
            _layer(weights, f"layers.{index}.", kind, tables[layer_type], config)
            for index, (kind, layer_type) in enumerate(zip(self.layer_kinds, config.layer_types, strict=True))
        ]
        # The norm that follows a layer's MLP belongs to the next layer; the last one's is the model's own.
        self._next_norms = [layer.input_norm for layer in self._layers[1:]] + [_norm(weights, "norm.weight")]

    def __call__(
        self,
        input_ids: torch.Tensor,
        attends: Attentions,
        rows: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,  # noqa: ARG002 (there are none)
    ) -> torch.Tensor:
        """See `RaggedModel`."""
        ops, eps = self._ops, self._eps
        positions = ops.positions(attends.layout.cu_seqlens, len(input_ids), self.max_positions)
        residual, x = ops.embed_rms_norm(input_ids, self._words, self._layers[0].input_norm, eps)
        for layer, next_norm in zip(self._layers, self._next_norms, strict=True):
            rotation = Rotation(layer.qk_norms, layer.cos_sin, positions, eps)
            mixed = attends[layer.kind](ops.linear(x, layer.qkv), rotation)
            if rows is not None and layer is self._layers[-1]:
                mixed, residual = mixed.index_select(0, rows), residual.index_select(0, rows)
            mixed = ops.linear(mixed, layer.attention_out)
            x = ops.norm_add_rms_norm(mixed, layer.mixed_norm, residual, layer.mlp_norm, eps)
            narrow = ops.linear(ops.glu(x, layer.gate_up, self._activation), layer.down)
            x = ops.norm_add_rms_norm(narrow, layer.down_norm, residual, next_norm, eps)
        return x


def _norm(weights: Weights, name: str) -> torch.Tensor:
    """What a norm multiplies with, float32."""
    return 1.0 + weights.take(name, dtype=torch.float32)


def _layer(weights: Weights, prefix: str, kind: int, cos_sin: torch.Tensor, config: Gemma3Config) -> _Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    return _Layer(
        kind=kind,
        cos_sin=cos_sin,
        input_norm=_norm(weights, prefix + "input_layernorm.weight"),
        qkv=weights.projection(
            *(f"{attention}{part}_proj.weight" for part in "qkv"), shape=(heads * config.head_dim, config.hidden_size)
        ),
        qk_norms=torch.stack([_norm(weights, f"{attention}{part}_norm.weight") for part in "qk"]),
        attention_out=weights.projection(attention + "o_proj.weight"),
        mixed_norm=_norm(weights, prefix + "post_attention_layernorm.weight"),
        mlp_norm=_norm(weights, prefix + "pre_feedforward_layernorm.weight"),
        gate_up=weights.projection(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=weights.projection(mlp + "down_proj.weight"),
        down_norm=_norm(weights, prefix + "post_feedforward_layernorm.weight"),
    )
