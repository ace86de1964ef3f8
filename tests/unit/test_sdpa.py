"""Attention on the CPU through sliding windows, against a mask written out by hand."""

from __future__ import annotations

import pytest
import torch

from rose_backend.attention.base import Geometry, RaggedLayout
from rose_backend.attention.sdpa import SdpaBackend
from rose_backend.kernels.torch_ops import TorchOps

_LENGTHS = [1, 3, 3, 9, 70]


def _by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, left: int, right: int, scale: float | None = None
) -> torch.Tensor:
    """One head, one sequence, one query at a time."""
    rows = []
    for place in range(len(q)):
        seen = slice(max(0, place - left), place + right + 1)
        weights = (k[seen] @ q[place] * (scale or q.shape[1] ** -0.5)).softmax(0)
        rows.append(weights @ v[seen])
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("window", [(0, 0), (2, 1), (64, 64)], ids=str)
def test_windows(window: tuple[int, int], kv_heads: int, causal: bool) -> None:
    torch.manual_seed(0)
    geometry = Geometry(2, kv_heads, 8, causal, torch.float32, torch.device("cpu"), window)
    offsets = torch.tensor([0, *_LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    qkv = torch.randn(int(offsets[-1]), sum(geometry.heads) * 8)
    attention = SdpaBackend(geometry, TorchOps()).open(RaggedLayout(offsets, len(qkv), max(_LENGTHS)))
    attention.plan(offsets)
    actual = attention(qkv).view(-1, 2, 8)
    left, right = window
    for part, mixed in zip(qkv.split(_LENGTHS), actual.split(_LENGTHS), strict=True):
        q, k, v = part.view(len(part), -1, 8).split(geometry.heads, dim=1)
        for head in range(2):
            kv_head = head * kv_heads // 2
            expected = _by_hand(q[:, head], k[:, kv_head], v[:, kv_head], left, 0 if causal else right)
            assert torch.allclose(mixed[:, head], expected, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [70, 70], [3]], ids=str)
def test_a_scale_of_its_own(lengths: list[int], causal: bool) -> None:
    """On every path: short groups, long groups, a sequence alone."""
    torch.manual_seed(0)
    geometry = Geometry(1, 1, 8, causal, torch.float32, torch.device("cpu"), score_scale=0.7)
    assert geometry.scale == 0.7
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    qkv = torch.randn(int(offsets[-1]), 24)
    attention = SdpaBackend(geometry, TorchOps()).open(RaggedLayout(offsets, len(qkv), max(lengths)))
    attention.plan(offsets)
    for part, mixed in zip(qkv.split(lengths), attention(qkv.clone()).split(lengths), strict=True):
        q, k, v = part.split(8, dim=1)
        expected = _by_hand(q, k, v, len(part), 0 if causal else len(part), 0.7)
        assert torch.allclose(mixed, expected, atol=1e-6)


def test_masks_are_those_of_the_batch_at_hand() -> None:
    torch.manual_seed(0)
    geometry = Geometry(1, 1, 8, False, torch.float32, torch.device("cpu"), (1, 2))
    attention = SdpaBackend(geometry, TorchOps()).open(RaggedLayout(torch.zeros(2, dtype=torch.int32), 9, 9))
    for length in (9, 2, 7, 9):
        qkv = torch.randn(length, 24)
        attention.plan(torch.tensor([0, length], dtype=torch.int32))
        for _ in range(2):  # as layers do
            assert torch.allclose(attention(qkv.clone()), _by_hand(*qkv.split(8, dim=1), 1, 2), atol=1e-6)
