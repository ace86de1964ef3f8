"""Which products run in our own kernels, and how they are cut up: measured on an H200, cuBLAS everywhere else.

`loadtests/gemm_tilings.py` measures candidates against cuBLAS (plus the step that ours fuse) over the weights of
28 layers, so that they come from memory and not from the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.kernels.gemm import Tiling

_MOST_TOKENS = 64


@dataclass(frozen=True)
class Tilings:
    """Tilings by number of tokens and shape of the weight; None leaves a product to cuBLAS.

    Attributes:
        enabled: whether this card was measured.
    """

    enabled: bool

    @classmethod
    def of(cls, device: torch.device) -> Tilings:
        """The choice for a CUDA device."""
        return cls(enabled=torch.cuda.get_device_capability(device) == (9, 0))

    def linear(self, tokens: int, width: int, depth: int) -> Tiling | None:
        """For a plain product of many columns."""
        return self._fitting(tokens, width, Tiling(_rows(tokens), 16, 128, 1, 2, 6), depth)

    def split_linear(self, tokens: int, width: int, depth: int) -> Tiling | None:
        """For a product of few columns whose parts the next norm adds up."""
        return self._fitting(tokens, width, Tiling(_rows(tokens), 16, 64, 4, 2, 6), depth)

    def swiglu(self, tokens: int, width: int, depth: int) -> Tiling | None:
        """For gate and up projections; `width` counts both."""
        return self._fitting(tokens, width // 2, Tiling(_rows(tokens), 32, 128, 1, 4, 4), depth)

    def _fitting(self, tokens: int, width: int, tiling: Tiling, depth: int) -> Tiling | None:
        divides = width % tiling.columns == 0 and depth % (tiling.splits * tiling.inner) == 0
        return tiling if self.enabled and tokens <= _MOST_TOKENS and divides else None


def _rows(tokens: int) -> int:
    return 16 if tokens <= 16 else 32 if tokens <= 32 else 64
