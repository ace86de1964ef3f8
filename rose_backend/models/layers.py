"""What layers of several architectures are made of: weights with and without bias, kinds of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rose_backend.attention.base import Geometry
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Nonlinearity
from rose_backend.kernels.packing import product
from rose_backend.weights import Weights

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as `layer_types` names them."""

NONLINEARITIES = {
    "gelu": Nonlinearity.GELU,
    "gelu_new": Nonlinearity.GELU_TANH,
    "gelu_pytorch_tanh": Nonlinearity.GELU_TANH,
    "relu": Nonlinearity.RELU,
    "silu": Nonlinearity.SILU,
    "swish": Nonlinearity.SILU,
}
"""By the names transformers gives them."""


@dataclass(frozen=True)
class Linear:
    """A projection."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None  # [out]

    @classmethod
    def take(cls, weights: Weights, *names: str, bias: bool = True, shape: tuple[int, int] | None = None) -> Linear:
        """One projection, or several as one, which then must have the same inputs, and this shape if one is given."""
        return cls(
            weights.projection(*(name + ".weight" for name in names), shape=shape),
            weights.stack(*(name + ".bias" for name in names)) if bias else None,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return product(x, self.weight, self.bias)


@dataclass(frozen=True)
class Norm:
    """A LayerNorm; without a bias of its own, zeros."""

    weight: torch.Tensor  # [hidden]
    bias: torch.Tensor  # [hidden]

    @classmethod
    def take(cls, weights: Weights, name: str, *, bias: bool = True) -> Norm:
        """The norm of this name."""
        weight = weights.take(name + ".weight")
        return cls(weight, weights.take(name + ".bias") if bias else torch.zeros_like(weight))


def nonlinearity(name: str, key: str) -> Nonlinearity:
    """The one `config.json` names under a key.

    Raises:
        CheckpointError: it is not served.
    """
    if name not in NONLINEARITIES:
        raise CheckpointError(f"config.json: {key} {name!r} is not one of {sorted(NONLINEARITIES)}")
    return NONLINEARITIES[name]


def geometries_of(
    full: Geometry, window: tuple[int, int] | None, layer_types: Sequence[str]
) -> tuple[tuple[Geometry, ...], tuple[int, ...]]:
    """The geometries of a model whose layers may differ in their window, and each layer's.

    Args:
        full: of layers that see everything.
        window: of those that do not; None: they see everything too.
        layer_types: `FULL` or `SLIDING`, for each layer.

    Raises:
        CheckpointError: a layer is of another type.
    """
    unknown = sorted(set(layer_types) - {FULL, SLIDING})
    if unknown:
        raise CheckpointError(f"config.json: layer_types {unknown[0]!r} is not one of {[FULL, SLIDING]}")
    if window is None or SLIDING not in layer_types:
        return (full,), (0,) * len(layer_types)
    sliding = replace(full, window=window)
    if FULL not in layer_types:
        return (sliding,), (0,) * len(layer_types)
    return (full, sliding), tuple(int(kind == SLIDING) for kind in layer_types)
