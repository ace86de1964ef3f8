"""The memory that FlashInfer's layouts share, on the CPU: it needs no kernel."""

from __future__ import annotations

import torch

from rose_backend.attention.flashinfer import _grow, _Workspace


def test_buffers_that_earlier_layouts_keep_do_not_add_up() -> None:
    workspace = _Workspace(torch.empty(16, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8), [], [])
    kept = {workspace.floats.data_ptr(): workspace.floats}
    for needed in range(1, 5000, 7):
        _grow(workspace, needed)
        assert workspace.floats.numel() >= needed
        kept[workspace.floats.data_ptr()] = workspace.floats
    assert sum(buffer.numel() for buffer in kept.values()) <= 4 * needed
