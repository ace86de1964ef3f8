"""NomicBERT (nomic-embed-text-v1, -v1.5): post-norm encoder with RoPE and SwiGLU, `config.json` in GPT-2's words.

Layer order and names follow the checkpoints on the hub; `fc12` is the gate and `fc11` what it lets through. Sequences
longer than those it was trained on are rotated by a base that grows with their own length, if the file sets a scaling
factor: what a text's batch mates are makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.attention.base import Attentions, Geometry, RaggedLayout
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Nonlinearity, Rotation
from rose_backend.models.base import ModelSource
from rose_backend.models.keys import refuse_causal, refuse_others, required
from rose_backend.models.layers import Linear, Norm
from rose_backend.models.lengths import usable_length
from rose_backend.models.rotary import Rope, rotation_table
from rose_backend.weights import PREFIXES, Weights

_THETA = 1000.0


@dataclass(frozen=True)
class NomicBertConfig:
    """The keys of `config.json` that shape a NomicBERT encoder.

    Attributes:
        trained_positions: from longer sequences on the rotation is scaled.
        scaling_factor: of that; None: it is not.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float
    theta: float
    trained_positions: int
    scaling_factor: float | None
    qkv_bias: bool
    up_bias: bool
    down_bias: bool

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NomicBertConfig:
        """Read the keys, of which the ones of transformers' own class are known too.

        Raises:
            CheckpointError: a key is missing, or asks for something this encoder does not do.
        """
        refuse_causal(values)
        for key, served in _ONLY.items():
            refuse_others(values, key, *served)
        rope = values.get("rope_parameters") or {}
        kind = rope.get("rope_type", "default")
        if kind not in ("default", "dynamic"):
            raise CheckpointError(f"config.json: rope_type {kind!r} is not served for model_type 'nomic_bert'")
        factor = values.get("rotary_scaling_factor") or (rope.get("factor") if kind == "dynamic" else None)
        theta = values.get("rotary_emb_base") or rope.get("rope_theta") or _THETA
        return cls(
            vocab_size=int(required(values, "vocab_size")),
            hidden_size=int(required(values, "n_embd", "hidden_size")),
            num_hidden_layers=int(required(values, "n_layer", "num_hidden_layers")),
            num_attention_heads=int(required(values, "n_head", "num_attention_heads")),
            layer_norm_eps=float(required(values, "layer_norm_epsilon", "layer_norm_eps")),
            theta=float(theta),
            trained_positions=int(required(values, "max_trained_positions", "max_position_embeddings", "n_positions")),
            scaling_factor=None if factor is None else float(factor),
            qkv_bias=bool(values.get("qkv_proj_bias", False)),
            up_bias=bool(values.get("mlp_fc1_bias", False)),
            down_bias=bool(values.get("mlp_fc2_bias", False)),
        )


_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": ("swiglu",),
    "hidden_act": ("silu",),
    "causal": (False,),
    "moe_every_n_layers": (0, -1),
    "num_experts": (0,),
    "parallel_block": (False,),
    "prenorm": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (),
    "use_rms_norm": (False,),
}


@dataclass(frozen=True)
class _Layer:
    qkv: Linear
    attention_out: Linear
    attention_norm: Norm
    gate_up: Linear
    down: Linear
    mlp_norm: Norm


class NomicBert:
    """A NomicBERT encoder; see `RaggedModel` for the call.

    Raises:
        CheckpointError: the files do not fit the architecture.
    """

    def __init__(self, source: ModelSource) -> None:
        config = NomicBertConfig.from_json(source.values)
        weights = Weights(source.folder, "embeddings.word_embeddings.weight", PREFIXES, source.device, source.dtype)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions = usable_length(source.values)
        self.rotates = True
        heads = config.num_attention_heads
        self._head_dim = config.hidden_size // heads
        self.geometries: tuple[Geometry, ...] = (
            Geometry(heads, heads, self._head_dim, False, source.dtype, source.device),
        )
        self.layer_kinds = (0,) * config.num_hidden_layers
        self._config = config
        self._ops = source.ops
        shape = (config.vocab_size, config.hidden_size)
        self._words = weights.take("embeddings.word_embeddings.weight", shape=shape)
        self._types = weights.take("embeddings.token_type_embeddings.weight")
        self.num_token_types = len(self._types)
        self._embedding_norm = Norm.take(weights, "emb_ln")
        self._cos_sin = rotation_table(Rope(config.theta), self._head_dim, self.max_positions, source.device)
        self._layers = [
            _layer(weights, f"encoder.layers.{index}.", config) for index in range(config.num_hidden_layers)
        ]

    def __call__(
        self,
        input_ids: torch.Tensor,
        attends: Attentions,
        rows: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `RaggedModel`."""
        ops, eps, norm = self._ops, self._config.layer_norm_eps, self._embedding_norm
        rotation = self._rotation(len(input_ids), attends.layout)
        types = torch.zeros_like(input_ids) if token_types is None else token_types
        attend = attends[0]
        x = ops.embed_layer_norm(input_ids, types, self._words, self._types, norm.weight, norm.bias, eps)
        for layer in self._layers:
            mixed = attend(ops.linear(x, layer.qkv.weight, layer.qkv.bias), rotation)
            if rows is not None and layer is self._layers[-1]:
                mixed, x = mixed.index_select(0, rows), x.index_select(0, rows)
            mixed = ops.linear(mixed, layer.attention_out.weight, layer.attention_out.bias)
            x = ops.add_layer_norm(mixed, x, layer.attention_norm.weight, layer.attention_norm.bias, eps)
            wide = ops.glu(x, layer.gate_up.weight, Nonlinearity.SILU, layer.gate_up.bias)
            narrow = ops.linear(wide, layer.down.weight, layer.down.bias)
            x = ops.add_layer_norm(narrow, x, layer.mlp_norm.weight, layer.mlp_norm.bias, eps)
        return x

    def _rotation(self, num_tokens: int, layout: RaggedLayout) -> Rotation:
        factor, trained = self._config.scaling_factor, self._config.trained_positions
        if factor is None or layout.max_seqlen <= trained:
            positions = self._ops.positions(layout.cu_seqlens, num_tokens, self.max_positions)
            return Rotation(None, self._cos_sin, positions, 0.0)
        tokens = torch.arange(num_tokens, dtype=torch.int32, device=layout.cu_seqlens.device)
        table = stretched_table(tokens, layout.cu_seqlens, self._config.theta, self._head_dim, factor, trained)
        return Rotation(None, table, tokens, 0.0, by_token=True)


def stretched_table(
    tokens: torch.Tensor, cu_seqlens: torch.Tensor, theta: float, head_dim: int, factor: float, trained: int
) -> torch.Tensor:
    """Cosines and sines where a sequence's own length L sets its base (dynamic NTK scaling).

    `base = theta * (factor * L / trained - (factor - 1)) ** (head_dim / (head_dim - 2))` beyond `trained` tokens
    (`_compute_dynamic_ntk_parameters` in transformers' `modeling_rope_utils.py`, there for a whole batch).

    Args:
        tokens: `[num_tokens]` int32, 0 and up.
        cu_seqlens: `[num_sequences + 1]` int32, up to all tokens.
        theta: base of sequences that are not longer than `trained`.
        head_dim: width of a head.
        factor: of the scaling.
        trained: longest sequence that is not scaled, in tokens.

    Returns:
        `[num_tokens, head_dim]` float32: cosines, then sines.
    """
    # Tokens of empty sequences there are none, so each token falls into the one sequence that ends behind it.
    sequence = torch.searchsorted(cu_seqlens[1:], tokens, right=True)
    starts, stops = cu_seqlens[:-1][sequence], cu_seqlens[1:][sequence]
    lengths = (stops - starts).float().clamp_min(trained)
    bases = theta * (factor * lengths / trained - (factor - 1)) ** (head_dim / (head_dim - 2))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=tokens.device) / head_dim
    angles = (tokens - starts).float()[:, None] * (1.0 / bases[:, None] ** exponents)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _layer(weights: Weights, prefix: str, config: NomicBertConfig) -> _Layer:
    heads = config.num_attention_heads
    shape = (3 * heads * (config.hidden_size // heads), config.hidden_size)
    return _Layer(
        qkv=Linear.take(weights, prefix + "attn.Wqkv", bias=config.qkv_bias, shape=shape),
        attention_out=Linear.take(weights, prefix + "attn.out_proj", bias=config.qkv_bias),
        attention_norm=Norm.take(weights, prefix + "norm1"),
        gate_up=Linear.take(weights, prefix + "mlp.fc12", prefix + "mlp.fc11", bias=config.up_bias),
        down=Linear.take(weights, prefix + "mlp.fc2", bias=config.down_bias),
        mlp_norm=Norm.take(weights, prefix + "norm2"),
    )
