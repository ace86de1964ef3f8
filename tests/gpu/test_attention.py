"""Every attention backend that can run here against float32 attention, on ragged batches with padding tails."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from rose_backend.attention.base import AttentionBackend, BackendUnavailableError, Geometry, RaggedLayout
from rose_backend.attention.select import _CANDIDATES
from rose_backend.kernels.ops import Rotation
from rose_backend.kernels.torch_ops import TorchOps
from rose_backend.kernels.triton_ops import TritonOps

_LENGTHS = {
    "short": [1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128],
    "long": [1, 63, 64, 65, 129, 511, 512, 513, 1025, 4096],
    "one": [37],
}
_TOLERANCE = 2e-2  # bfloat16 keeps 8 bits; values are of size one


def _open(name: str, geometry: Geometry, layout: RaggedLayout) -> AttentionBackend:
    try:
        backend = _CANDIDATES[name](geometry, TritonOps(geometry.device, geometry.dtype))
        backend.open(layout)
    except BackendUnavailableError as reason:
        pytest.skip(str(reason))
    return backend


def _reference(qkv: torch.Tensor, lengths: list[int], geometry: Geometry) -> torch.Tensor:
    parts = []
    left, right = geometry.window or (len(qkv), len(qkv))
    heads = qkv.float().view(len(qkv), -1, geometry.head_dim)
    start = 0
    for length in lengths:
        q, k, v = (part.transpose(0, 1) for part in heads[start : start + length].split(geometry.heads, dim=1))
        seen = torch.ones(length, length, dtype=torch.bool, device=qkv.device)
        mixed = F.scaled_dot_product_attention(
            q[None],
            k[None],
            v[None],
            attn_mask=seen.triu(-left).tril(0 if geometry.causal else right),
            scale=geometry.scale,
            enable_gqa=geometry.num_heads != geometry.num_kv_heads,
        )
        parts.append(mixed[0].transpose(0, 1).flatten(1))
        start += length
    return torch.cat(parts)


@pytest.mark.parametrize("window", [None, (64, 64), (0, 3)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("name", _CANDIDATES)
def test_sliding_windows(name: str, causal: bool, window: tuple[int, int] | None) -> None:
    _check(name, "long" if name != "triton_short" else "short", (16, 8, 128), causal, window=window, rotate=False)


@pytest.mark.parametrize(
    ("causal", "window"), [(False, None), (False, (256, 256)), (True, None), (True, (64, 0)), (True, (511, 0))], ids=str
)
@pytest.mark.parametrize("name", _CANDIDATES)
def test_heads_of_256(name: str, causal: bool, window: tuple[int, int] | None) -> None:
    """EmbeddingGemma's, and those of causal Gemma 3."""
    _check(name, "long", (3, 1, 256), causal=causal, window=window, rotate=True)


@pytest.mark.parametrize("heads", [(16, 8, 128), (3, 1, 256)], ids=str)
@pytest.mark.parametrize("name", _CANDIDATES)
def test_a_scale_of_its_own(name: str, heads: tuple[int, int, int]) -> None:
    lengths = "long" if name != "triton_short" else "short"
    _check(name, lengths, heads, causal=False, window=None, rotate=False, scale=0.21)


@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("heads", [(16, 8, 128), (12, 12, 64), (12, 12, 32)], ids=str)
@pytest.mark.parametrize("lengths", _LENGTHS)
@pytest.mark.parametrize("name", _CANDIDATES)
def test_backend(name: str, lengths: str, heads: tuple[int, int, int], causal: bool, rotate: bool) -> None:
    _check(name, lengths, heads, causal, window=None, rotate=rotate)


def _check(
    name: str,
    lengths: str,
    heads: tuple[int, int, int],
    causal: bool,
    *,
    window: tuple[int, int] | None,
    rotate: bool,
    scale: float | None = None,
) -> None:
    device = torch.device("cuda:0")
    geometry = Geometry(*heads, causal, torch.bfloat16, device, window, scale)
    real = _LENGTHS[lengths]
    tokens = sum(real)
    padded = -(-tokens // 64) * 64
    offsets = torch.tensor([0, *torch.tensor(real).cumsum(0).tolist(), padded, padded], dtype=torch.int32).pin_memory()
    layout = RaggedLayout(offsets.to(device), padded, max(real))
    attention = _open(name, geometry, layout).open(layout)
    torch.manual_seed(0)
    qkv = torch.randn(padded, sum(geometry.heads) * geometry.head_dim, device=device).bfloat16()
    rotation, expected_input = None, qkv.float()
    if rotate:
        positions = TorchOps().positions(layout.cu_seqlens, padded, 8192)
        weights = (torch.rand(2, geometry.head_dim, device=device) + 0.5).bfloat16()
        angles = torch.rand(8192, geometry.head_dim // 2, device=device) * 6
        cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
        rotation = Rotation(weights, cos_sin, positions, 1e-6)
        TorchOps().qk_norm_rope(expected_input, weights.float(), cos_sin, positions, heads[0], heads[1], 1e-6)
    expected = _reference(expected_input[:tokens], real, geometry)
    attention.plan(offsets)
    actual = attention(qkv.clone(), rotation)[:tokens].float()
    assert torch.isfinite(actual).all()
    assert (actual - expected).abs().max() <= _TOLERANCE


_MASKS_VALUES = ("triton_short", "triton_stream", "torch_varlen", "flashinfer_fa2")
"""Backends to which a NaN behind a sequence is nothing; the others multiply it by 0."""


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("heads", [(16, 8, 128), (12, 12, 64), (12, 12, 32), (3, 1, 256)], ids=str)
@pytest.mark.parametrize("name", _MASKS_VALUES)
def test_nan_in_padding_stays_there(name: str, heads: tuple[int, int, int], causal: bool) -> None:
    actual, expected = _beside_padding(name, heads, causal, float("nan"))
    assert torch.isfinite(actual[: len(expected)]).all()
    assert (actual[: len(expected)] - expected).abs().max() <= _TOLERANCE


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("heads", [(16, 8, 128), (12, 12, 64), (12, 12, 32), (3, 1, 256)], ids=str)
@pytest.mark.parametrize("name", _CANDIDATES)
def test_padding_is_finite_whatever_its_memory_held(name: str, heads: tuple[int, int, int], causal: bool) -> None:
    """It is longer than any real sequence, and what runs after may not be one of those that mask values."""
    actual, expected = _beside_padding(name, heads, causal, 1.0)
    assert torch.isfinite(actual).all()
    assert (actual[: len(expected)] - expected).abs().max() <= _TOLERANCE


def _beside_padding(
    name: str, heads: tuple[int, int, int], causal: bool, padding: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a backend makes of a batch most of which is padding, all of it; and what it should, of the real rows."""
    device = torch.device("cuda:0")
    geometry = Geometry(*heads, causal, torch.bfloat16, device)
    real = [5, 64, 40]
    tokens, padded = sum(real), 512
    ends = torch.tensor(real).cumsum(0).tolist()
    offsets = torch.tensor([0, *ends, padded, padded], dtype=torch.int32).pin_memory()
    layout = RaggedLayout(offsets.to(device), padded, max(real))
    attention = _open(name, geometry, layout).open(layout)
    torch.manual_seed(0)
    qkv = torch.randn(padded, sum(geometry.heads) * geometry.head_dim, device=device).bfloat16()
    expected = _reference(qkv[:tokens].float(), real, geometry)
    qkv[tokens:] = padding
    attention.plan(offsets)
    _poison(padded * heads[0] * heads[2], device)
    return attention(qkv, None).float(), expected


def _poison(num_elements: int, device: torch.device) -> None:
    """Leave NaN in the memory that the next allocations of this size and of twice it get."""
    blocks = [
        torch.full((num_elements * times,), float("nan"), dtype=torch.bfloat16, device=device) for times in (1, 1, 2)
    ]
    torch.cuda.current_stream().synchronize()
    del blocks
