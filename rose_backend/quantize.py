"""Codes in place of float32 vectors, made on the device so that fewer bytes come back: int8, and packed signs.

Two families of rules:

- pplx-embed's `st_quantize.FlexibleQuantizer`, on vectors that are not scaled: int8 = round(127 * tanh(x)), half to
  even; bit = x >= 0.
- sentence-transformers' `quantize_embeddings`: int8 = clip(floor((x - low) / step), 0, 255) - 128 with ranges per
  element that were measured before, step = (high - low) / 255; bit = x > 0.
"""

from __future__ import annotations

import torch

from rose_backend.config import HeadConfig
from rose_backend.core import Output
from rose_backend.kernels.ops import Ops


class Quantizer:
    """A checkpoint's rules.

    Args:
        config: of its head.
        device: of the vectors.
    """

    def __init__(self, config: HeadConfig, device: torch.device) -> None:
        self._tanh = config.tanh_codes
        self.forms = Output.FLOAT | Output.BINARY
        if self._tanh or config.ranges:
            self.forms |= Output.INT8
        if config.ranges:
            lows = torch.tensor([ranges.low for ranges in config.ranges], dtype=torch.float32)
            steps = (torch.tensor([ranges.high for ranges in config.ranges], dtype=torch.float32) - lows) / 255
            self._lows = lows.to(device)
            self._steps = torch.where(steps == 0, 1.0, steps).to(device)  # as the library does
            self._scalings = torch.tensor([r.scaling for r in config.ranges], dtype=torch.int32, device=device)

    def __call__(
        self, ops: Ops, x: torch.Tensor, normalize: torch.Tensor, outputs: Output
    ) -> dict[Output, torch.Tensor]:
        """Vectors in every form wanted.

        Args:
            ops: of the device.
            x: `[rows, dim]` float32, scaled as wanted.
            normalize: `[rows]` int32, how each row is scaled; see `Request.scaling`.
            outputs: the forms, of those in `forms`.
        """
        made = {}
        if outputs & Output.FLOAT:
            made[Output.FLOAT] = x
        if outputs & Output.VOCABULARY:
            made[Output.VOCABULARY] = x
        if outputs & Output.INT8:
            made[Output.INT8] = (
                ops.tanh_codes(x)
                if self._tanh
                else ops.range_codes(x, normalize, self._scalings, self._lows, self._steps)
            )
        if outputs & Output.BINARY:
            made[Output.BINARY] = ops.sign_bits(x, or_zero=self._tanh)
        return made
