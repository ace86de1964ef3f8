"""Which products run in our own kernels, and how they are cut up: measured on an H200, cuBLAS everywhere else.

Candidates were timed against cuBLAS plus the step that ours fuse, as graph replays over the weights of 28 layers,
so that weights come from memory and not from the L2 cache; large products at sustained load.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.kernels.fused_gemm import LARGE, SMALL, FusedTiling
from rose_backend.kernels.gemm import Tiling

_LARGE_GLU_FROM = 1280
_SMALL_GLU = (range(385, 513), range(897, 1025))  # where small tiles come out even on the card; cuBLAS between

_LINEAR = {16: Tiling(16, 16, 64, 1, 2, 6), 32: Tiling(32, 16, 64, 1, 2, 6), 64: Tiling(64, 32, 128, 1, 4, 6)}
_SPLIT_LINEAR = {
    16: Tiling(16, 16, 64, 4, 2, 6),
    32: Tiling(32, 16, 64, 4, 2, 6),
    64: Tiling(64, 32, 64, 4, 4, 6),
    128: Tiling(64, 32, 128, 2, 4, 6),
}
_GLU = {16: Tiling(16, 32, 256, 1, 2, 4), 32: Tiling(32, 16, 64, 1, 2, 6), 64: Tiling(64, 32, 64, 1, 4, 6)}


@dataclass(frozen=True)
class Tilings:
    """Tilings by number of tokens and shape of the weight; None leaves a product to cuBLAS.

    Attributes:
        enabled: whether this card and element size were measured.
    """

    enabled: bool

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype) -> Tilings:
        """The choice for a CUDA device. Four-byte elements would not fit these tiles into shared memory."""
        return cls(enabled=torch.cuda.get_device_capability(device) == (9, 0) and dtype.itemsize == 2)

    def fused_glu(self, tokens: int, width: int, depth: int) -> FusedTiling | None:
        """For gate and up projections fused with their product, of hundreds of tokens up; `width` counts both."""
        if tokens >= _LARGE_GLU_FROM:
            tiling = LARGE
        elif any(tokens in few for few in _SMALL_GLU):
            tiling = SMALL
        else:
            return None
        fits = (width // 2) % tiling.columns == 0 and depth % tiling.inner == 0
        return tiling if self.enabled and fits else None

    def linear(self, tokens: int, width: int, depth: int) -> Tiling | None:
        """For a plain product of many columns."""
        return self._fitting(_LINEAR, tokens, width, depth)

    def split_linear(self, tokens: int, width: int, depth: int) -> Tiling | None:
        """For a product of few columns whose parts the next norm adds up."""
        return self._fitting(_SPLIT_LINEAR, tokens, width, depth)

    def glu(self, tokens: int, width: int, depth: int) -> Tiling | None:
        """For gate and up projections; `width` counts both."""
        return self._fitting(_GLU, tokens, width // 2, depth)

    def _fitting(self, tilings: dict[int, Tiling], tokens: int, width: int, depth: int) -> Tiling | None:
        tiling = next((tiling for most, tiling in tilings.items() if tokens <= most), None)
        if not self.enabled or tiling is None or width % tiling.columns or depth % (tiling.splits * tiling.inner):
            return None
        return tiling
