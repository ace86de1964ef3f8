"""What Qwen, Llama and Mistral models share: pre-norm, RoPE, gated MLP, grouped key and value heads.

Layer order and names follow the Hugging Face checkpoints (`modeling_llama.py` and its kin in transformers). What
differs (biases, QK norm, windows, causality) is in `DecoderConfig`; each family's file reads it from `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.attention.base import Attentions, Geometry
from rose_backend.kernels.ops import Nonlinearity, Rotation
from rose_backend.models.base import ModelSource
from rose_backend.models.keys import refuse_others, required
from rose_backend.models.layers import FULL, SLIDING, geometries_of
from rose_backend.models.rotary import Rope, rotation_table
from rose_backend.weights import PREFIXES, Weights

_BIDIRECTIONAL_TYPES = frozenset({"bidirectional_pplx_qwen3", "llama_bidirec"})
_BIDIRECTIONAL_CLASSES = frozenset({"LlamaBidirectionalModel", "PPLXQwen3ContextualModel", "PPLXQwen3Model"})


@dataclass(frozen=True)
class DecoderConfig:
    """The keys of `config.json` that shape a decoder.

    Attributes:
        window: tokens a sliding layer sees, as the family counts them.
        layer_types: `FULL` or `SLIDING`, for each layer.
        causal: whether a token sees only earlier ones.
        qkv_bias: whether queries, keys and values have biases.
        qk_norm: whether query and key heads are normed before they are rotated.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    window: int | None
    layer_types: tuple[str, ...]
    causal: bool
    qkv_bias: bool
    qk_norm: bool

    @classmethod
    def from_json(
        cls,
        values: Mapping[str, Any],
        *,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        window: int | None = None,
        layer_types: Sequence[str] | None = None,
        default_theta: float | None = None,
    ) -> DecoderConfig:
        """Read the keys all families have; the arguments are what a family's own file found or knows.

        Raises:
            CheckpointError: a key is missing, or asks for something these models do not do.
        """
        refuse_others(values, "hidden_act", "silu")
        refuse_others(values, "attention_bias", False)
        refuse_others(values, "mlp_bias", False)
        refuse_others(values, "partial_rotary_factor", 1.0)
        num_layers = int(required(values, "num_hidden_layers"))
        heads, hidden_size = int(required(values, "num_attention_heads")), int(required(values, "hidden_size"))
        return cls(
            vocab_size=int(required(values, "vocab_size")),
            hidden_size=hidden_size,
            intermediate_size=int(required(values, "intermediate_size")),
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            num_key_value_heads=int(required(values, "num_key_value_heads")),
            head_dim=int(values.get("head_dim") or hidden_size // heads),
            max_position_embeddings=int(required(values, "max_position_embeddings")),
            rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope=Rope.from_json(values, default_theta),
            window=window,
            layer_types=tuple(layer_types or [FULL if window is None else SLIDING] * num_layers),
            causal=_is_causal(values),
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
        )

    @property
    def reach(self) -> tuple[int, int] | None:
        """How many tokens to the left and to the right a sliding layer sees; None: all of them.

        A causal window counts the token itself, a bidirectional one does not (`sliding_window_overlay` and
        `sliding_window_bidirectional_overlay` in transformers' `masking_utils.py`).
        """
        if self.window is None:
            return None
        reach = (self.window - 1, 0) if self.causal else (self.window, self.window)
        return None if reach[0] >= self.max_position_embeddings - 1 else reach


def qwen_windows(values: Mapping[str, Any]) -> tuple[int | None, list[str] | None]:
    """Qwen's sliding window, if it is used, and its layers: those named so, else all from `max_window_layers` on."""
    if not values.get("use_sliding_window", False) or values.get("sliding_window") is None:
        return None, None
    types = values.get("layer_types")
    if types is None:
        first = int(required(values, "max_window_layers"))
        types = [SLIDING if index >= first else FULL for index in range(int(required(values, "num_hidden_layers")))]
    return int(values["sliding_window"]), list(types)


def _is_causal(values: Mapping[str, Any]) -> bool:
    """Unless one of the switches says otherwise: a key, the type, or the name of a class."""
    if values.get("model_type") in _BIDIRECTIONAL_TYPES or values.get("use_bidirectional_attention"):
        return False
    classes = [*(values.get("architectures") or ()), *(values.get("auto_map") or {}).values()]
    if any(str(name).rsplit(".", 1)[-1] in _BIDIRECTIONAL_CLASSES for name in classes):
        return False
    return values.get("is_causal") is not False


@dataclass(frozen=True)
class _Layer:
    kind: int
    input_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: torch.Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    qk_norms: torch.Tensor | None  # [2, head_dim]
    attention_out: torch.Tensor  # [hidden, heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


class Decoder:
    """A decoder without its language-model head; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource, config: DecoderConfig) -> None:
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
        )
        self.geometries, self.layer_kinds = geometries_of(full, config.reach, config.layer_types)
        self._eps = config.rms_norm_eps
        self._ops = source.ops
        self._words = weights.take("embed_tokens.weight", shape=(config.vocab_size, config.hidden_size))
        self._cos_sin = rotation_table(config.rope, config.head_dim, config.max_position_embeddings, source.device)
        self._layers = [
            _layer(weights, f"layers.{index}.", kind, config) for index, kind in enumerate(self.layer_kinds)
        ]
        # The norm that follows a layer's MLP belongs to the next layer; the last one's is the model's own.
        self._next_norms = [layer.input_norm for layer in self._layers[1:]] + [weights.take("norm.weight")]

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
            rotation = Rotation(layer.qk_norms, self._cos_sin, positions, eps)
            mixed = attends[layer.kind](ops.linear(x, layer.qkv, layer.qkv_bias), rotation)
            if rows is not None and layer is self._layers[-1]:
                mixed, residual = mixed.index_select(0, rows), residual.index_select(0, rows)
            x = ops.linear_add_rms_norm(mixed, layer.attention_out, residual, layer.mlp_norm, eps)
            wide = ops.glu(x, layer.gate_up, Nonlinearity.SILU)
            x = ops.linear_add_rms_norm(wide, layer.down, residual, next_norm, eps)
        return x


def _layer(weights: Weights, prefix: str, kind: int, config: DecoderConfig) -> _Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    return _Layer(
        kind=kind,
        input_norm=weights.take(prefix + "input_layernorm.weight"),
        qkv=weights.projection(
            *(f"{attention}{part}_proj.weight" for part in "qkv"), shape=(heads * config.head_dim, config.hidden_size)
        ),
        qkv_bias=weights.stack(*(f"{attention}{part}_proj.bias" for part in "qkv")) if config.qkv_bias else None,
        qk_norms=(
            torch.stack([weights.take(f"{attention}{part}_norm.weight") for part in "qk"]) if config.qk_norm else None
        ),
        attention_out=weights.projection(attention + "o_proj.weight"),
        mlp_norm=weights.take(prefix + "post_attention_layernorm.weight"),
        gate_up=weights.projection(
            mlp + "gate_proj.weight",
            mlp + "up_proj.weight",
            shape=(2 * config.intermediate_size, config.hidden_size),
        ),
        down=weights.projection(mlp + "down_proj.weight"),
    )
