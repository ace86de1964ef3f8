"""Attention on the CPU through sliding windows, against a mask written out by hand."""

from __future__ import annotations

import pytest
import torch

from rose_backend.attention.base import Geometry, RaggedLayout
from rose_backend.attention.sdpa import SdpaBackend
from rose_backend.kernels.torch_ops import TorchOps

_LENGTHS = [1, 3, 3, 9, 70]


def _by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """One head, one sequence, one query at a time."""
    rows = []
    for place in range(len(q)):
        seen = slice(max(0, place - left), place + right + 1)
        weights = (k[seen] @ q[place] * q.shape[1] ** -0.5).softmax(0)
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
