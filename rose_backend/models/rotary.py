"""Rotary position embedding: the tables of cosines and sines that `Ops.qk_norm_rope` reads.

Sources: Su et al., arXiv:2104.09864; for `llama3`, `_compute_llama3_parameters` in transformers'
`modeling_rope_utils.py`. Frequencies are computed in float32, in the order transformers computes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rose_backend.errors import CheckpointError
from rose_backend.models.keys import required


@dataclass(frozen=True)
class Llama3Scaling:
    """Low frequencies are divided, high ones stay, those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    def __call__(self, frequencies: torch.Tensor) -> torch.Tensor:
        """`[head_dim / 2]` frequencies, scaled."""
        lengths = 2 * math.pi / frequencies
        longest = self.original_positions / self.low_freq_factor
        shortest = self.original_positions / self.high_freq_factor
        scaled = torch.where(lengths > longest, frequencies / self.factor, frequencies)
        share = (self.original_positions / lengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - share) * frequencies / self.factor + share * frequencies
        return torch.where((lengths >= shortest) & (lengths <= longest), blended, scaled)


@dataclass(frozen=True)
class Rope:
    """A rotation as `config.json` describes it."""

    theta: float
    scaling: Llama3Scaling | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], default_theta: float | None = None) -> Rope:
        """Read `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` at the top (older files).

        Args:
            values: of `config.json`.
            default_theta: of the family; None: the file must say.

        Raises:
            CheckpointError: the file has no theta, or asks for a kind of rotation that is not served.
        """
        rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise CheckpointError(
                f"config.json: rope_type {kind!r} is not served for model_type {values.get('model_type')!r}"
            )
        theta = rope.get("rope_theta")
        if theta is None:
            theta = values.get("rope_theta", default_theta)
        if theta is None:
            raise CheckpointError("config.json has no rope_theta")
        if kind == "default":
            return cls(float(theta))
        original = (
            values.get("original_max_position_embeddings")  # wins in transformers, too
            or rope.get("original_max_position_embeddings")
            or required(values, "max_position_embeddings")
        )
        factor, low, high = (float(required(rope, key)) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        return cls(float(theta), Llama3Scaling(factor, low, high, int(original)))


def frequencies(theta: float, head_dim: int, device: torch.device) -> torch.Tensor:
    """`theta ** (-2i / head_dim)`, `[head_dim / 2]` float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return 1.0 / theta**exponents


def rotation_table(rope: Rope, head_dim: int, max_positions: int, device: torch.device) -> torch.Tensor:
    """`[max_positions, head_dim]` float32: cosines, then sines, of every position's angles.

    Raises:
        CheckpointError: a head size that the kernels of this device do not rotate.
    """
    if device.type == "cuda" and head_dim & (head_dim - 1):
        raise CheckpointError(f"config.json: head_dim {head_dim} is not served on a GPU: it is no power of two")
    turns = frequencies(rope.theta, head_dim, device)
    if rope.scaling is not None:
        turns = rope.scaling(turns)
    places = torch.arange(max_positions, dtype=torch.float32, device=device)
    angles = torch.outer(places, turns)
    return torch.cat([angles.cos(), angles.sin()], dim=1)
