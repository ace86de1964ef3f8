"""Qwen3, causal (Qwen3-Embedding) or bidirectional (pplx-embed-v1): pre-norm, QK norm, RoPE, SwiGLU, GQA.

Layer order and names follow the Hugging Face checkpoints (`modeling_qwen3.py` in transformers). Three switches
make it bidirectional: `is_causal: false`, `use_bidirectional_attention: true`, or pplx-embed's own `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.attention.base import Attention, Geometry
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Rotation
from rose_backend.models.base import ModelSource
from rose_backend.weights import Weights

_BIDIRECTIONAL_TYPES = frozenset({"bidirectional_pplx_qwen3"})


@dataclass(frozen=True)
class Qwen3Config:
    """The keys of `config.json` that shape a Qwen3 model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    causal: bool

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Qwen3Config:
        """Read the keys.

        Raises:
            CheckpointError: a key is missing, or asks for something this model does not do.
        """
        if values.get("hidden_act", "silu") != "silu":
            raise CheckpointError(f"config.json: hidden_act {values['hidden_act']!r}: only 'silu' is served")
        if values.get("attention_bias", False):
            raise CheckpointError("config.json: attention_bias true is not served for Qwen3")
        if values.get("use_sliding_window", False):
            raise CheckpointError("config.json: use_sliding_window true is not served for Qwen3")
        try:
            return cls(
                vocab_size=int(values["vocab_size"]),
                hidden_size=int(values["hidden_size"]),
                intermediate_size=int(values["intermediate_size"]),
                num_hidden_layers=int(values["num_hidden_layers"]),
                num_attention_heads=int(values["num_attention_heads"]),
                num_key_value_heads=int(values["num_key_value_heads"]),
                head_dim=int(values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]),
                max_position_embeddings=int(values["max_position_embeddings"]),
                rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
                rope_theta=_rope_theta(values),
                causal=_is_causal(values),
            )
        except KeyError as missing:
            raise CheckpointError(f"config.json has no key {missing}") from None


def _rope_theta(values: Mapping[str, Any]) -> float:
    """`rope_theta` at the top (older files) or in `rope_parameters` (transformers 5)."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"config.json: rope_type {kind!r} is not served for Qwen3")
    theta = rope.get("rope_theta", values.get("rope_theta"))
    if theta is None:
        raise CheckpointError("config.json has no rope_theta")
    return float(theta)


def _is_causal(values: Mapping[str, Any]) -> bool:
    if values.get("model_type") in _BIDIRECTIONAL_TYPES or values.get("use_bidirectional_attention"):
        return False
    return bool(values.get("is_causal", True))


@dataclass(frozen=True)
class _Layer:
    input_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qk_norms: torch.Tensor  # [2, head_dim]
    attention_out: torch.Tensor  # [hidden, heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


class Qwen3:
    """A Qwen3 model without its language-model head; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        config = Qwen3Config.from_json(source.values)
        weights = Weights(source.folder, "embed_tokens.weight", ("", "model."), source.device, source.dtype)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.num_layers = config.num_hidden_layers
        self.rotates = True
        self.geometry = Geometry(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.causal,
            source.dtype,
            source.device,
        )
        self._eps = config.rms_norm_eps
        self._ops = source.ops
        self._words = weights.take("embed_tokens.weight")
        self._cos_sin = _rotation_table(config, source.device)
        self._layers = [_layer(weights, f"layers.{index}.") for index in range(config.num_hidden_layers)]
        # The norm that follows a layer's MLP belongs to the next layer; the last one's is the model's own.
        self._next_norms = [layer.input_norm for layer in self._layers[1:]] + [weights.take("norm.weight")]

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attention, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `RaggedModel`."""
        ops, eps = self._ops, self._eps
        residual, x = ops.embed_rms_norm(input_ids, self._words, self._layers[0].input_norm, eps)
        for layer, next_norm in zip(self._layers, self._next_norms, strict=True):
            rotation = Rotation(layer.qk_norms, self._cos_sin, positions, eps)
            mixed = attend(ops.linear(x, layer.qkv), rotation)
            if rows is not None and layer is self._layers[-1]:
                mixed, residual = mixed.index_select(0, rows), residual.index_select(0, rows)
            x = ops.linear_add_rms_norm(mixed, layer.attention_out, residual, layer.mlp_norm, eps)
            wide = ops.swiglu(x, layer.gate_up)
            x = ops.linear_add_rms_norm(wide, layer.down, residual, next_norm, eps)
        return x


def _rotation_table(config: Qwen3Config, device: torch.device) -> torch.Tensor:
    """`[max_positions, head_dim]` float32: cosines, then sines, of `position * theta ** (-2i / head_dim)`."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    places = torch.arange(config.max_position_embeddings, dtype=torch.float32, device=device)
    angles = torch.outer(places, frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _layer(weights: Weights, prefix: str) -> _Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return _Layer(
        input_norm=weights.take(prefix + "input_layernorm.weight"),
        qkv=weights.stack(*(f"{attention}{part}_proj.weight" for part in "qkv")),
        qk_norms=torch.stack([weights.take(f"{attention}{part}_norm.weight") for part in "qk"]),
        attention_out=weights.take(attention + "o_proj.weight"),
        mlp_norm=weights.take(prefix + "post_attention_layernorm.weight"),
        gate_up=weights.stack(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=weights.take(mlp + "down_proj.weight"),
    )
