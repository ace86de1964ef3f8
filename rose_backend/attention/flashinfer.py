"""FlashInfer's ragged prefill kernels, FA2 and FA3, recorded in CUDA graphs.

The work split is planned on the host for every batch, outside the graph; the plan's arrays travel to one fixed
device workspace. One workspace serves every layout, since each batch is planned right before it runs. The
page-locked side alternates, so that a plan never overwrites what an earlier batch's copy has yet to read.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from rose_backend.attention.base import BackendUnavailableError, Geometry, RaggedLayout, SplitAttention
from rose_backend.attention.flashinfer_kernels import FlashInferKernelError, KernelSpec, missing
from rose_backend.kernels.ops import Ops

_FA3_WORKSPACE_BYTES = 2**20  # FA3 does not split keys, so it keeps no partial results
_FA2_TILE_ROWS = 128  # its largest tile; recorded batches always keep partial results, a tile for each sequence
_INT_WORKSPACE_BYTES = 8 * 2**20  # what the wrapper itself would allocate
_PLANS_IN_FLIGHT = 3


@dataclass
class _Workspace:
    """Buffers all layouts share; `stage` and `sent` rotate."""

    floats: torch.Tensor
    ints: torch.Tensor
    staging: list[torch.Tensor]
    sent: list[torch.cuda.Event]
    turn: int = 0


@dataclass(frozen=True)
class FlashInferBackend:
    """One of FlashInfer's kernels for one geometry.

    Raises:
        BackendUnavailableError: package or kernel not installed, or a card, dtype or head size it is not for.
    """

    geometry: Geometry
    ops: Ops
    kernel: Literal["fa2", "fa3"]
    capturable: bool = True
    longest: int | None = None
    shares_workspace: bool = True
    _workspace: _Workspace = field(init=False, repr=False)

    def __post_init__(self) -> None:
        geometry, name = self.geometry, self.name
        if geometry.device.type != "cuda":
            raise BackendUnavailableError(f"{name}: needs a CUDA device")
        if geometry.dtype not in (torch.bfloat16, torch.float16):
            raise BackendUnavailableError(f"{name}: no kernel for {geometry.dtype}")
        if geometry.head_dim not in (64, 128, 256):
            raise BackendUnavailableError(f"{name}: no kernel for head_dim {geometry.head_dim}")
        if self.kernel == "fa3" and torch.cuda.get_device_capability(geometry.device) != (9, 0):
            raise BackendUnavailableError(f"{name}: needs a Hopper GPU")
        if importlib.util.find_spec("flashinfer") is None:
            raise BackendUnavailableError(f"{name}: pip install flashinfer-python")
        if geometry.window is not None and not geometry.causal:
            raise BackendUnavailableError(f"{name}: its windows end at the token itself")
        dtype: Literal["bfloat16", "float16"] = "bfloat16" if geometry.dtype is torch.bfloat16 else "float16"
        spec = KernelSpec(self.kernel, geometry.head_dim, dtype, sliding_window=geometry.window is not None)
        try:
            not_built = missing([spec])
        except FlashInferKernelError as cause:
            raise BackendUnavailableError(f"{name}: {cause}") from cause
        if not_built:
            wanted = " --sliding-window" if spec.sliding_window else ""
            raise BackendUnavailableError(f"{name}: kernel not built; run `rose build-kernels{wanted}` once")
        # A kernel that should be there but is not must fail at once, not stall a request behind a compiler.
        os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
        workspace = _Workspace(
            floats=torch.empty(_FA3_WORKSPACE_BYTES, dtype=torch.uint8, device=geometry.device),
            ints=torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, device=geometry.device),
            staging=[
                torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_PLANS_IN_FLIGHT)
            ],
            sent=[torch.cuda.Event() for _ in range(_PLANS_IN_FLIGHT)],
        )
        object.__setattr__(self, "_workspace", workspace)

    @property
    def name(self) -> str:
        """See `AttentionBackend`."""
        return f"flashinfer_{self.kernel}"

    def open(self, layout: RaggedLayout) -> FlashInferAttention:
        """See `AttentionBackend`."""
        return FlashInferAttention(self.geometry, self.ops, self.kernel, layout, self._workspace)


class FlashInferAttention(SplitAttention):
    """See `Attention`."""

    def __init__(self, geometry: Geometry, ops: Ops, kernel: str, layout: RaggedLayout, workspace: _Workspace) -> None:
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        super().__init__(geometry, ops)
        self._workspace = workspace
        if kernel == "fa2":
            _grow(workspace, _fa2_workspace_bytes(geometry, layout))
        self._wrapper: Any = BatchPrefillWithRaggedKVCacheWrapper(
            workspace.floats,
            use_cuda_graph=True,
            qo_indptr_buf=layout.cu_seqlens,
            kv_indptr_buf=layout.cu_seqlens,
            backend=kernel,
        )
        self._wrapper._int_workspace_buffer = workspace.ints
        # The first plan fixes the most rows this wrapper takes: one sequence holding all of them.
        full = torch.full((layout.num_sequences + 1,), layout.num_tokens, dtype=torch.int32, pin_memory=True)
        full[0] = 0
        self.plan(full)

    def plan(self, cu_seqlens: torch.Tensor) -> None:
        """Split the batch's work over the card. See `Attention`."""
        workspace, geometry = self._workspace, self._geometry
        workspace.turn = (workspace.turn + 1) % _PLANS_IN_FLIGHT
        sent = workspace.sent[workspace.turn]
        sent.synchronize()  # three plans ago; its copy has long run
        self._wrapper._pin_memory_int_workspace_buffer = workspace.staging[workspace.turn]
        self._wrapper.plan(
            cu_seqlens,
            cu_seqlens,
            geometry.num_heads,
            geometry.num_kv_heads,
            geometry.head_dim,
            causal=geometry.causal,
            window_left=-1 if geometry.window is None else geometry.window[0],
            sm_scale=geometry.scale,
            q_data_type=geometry.dtype,
        )
        sent.record()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `SplitAttention`."""
        run: Callable[..., torch.Tensor] = self._wrapper.run
        return run(q, k, v)


def _fa2_workspace_bytes(geometry: Geometry, layout: RaggedLayout) -> int:
    """Upper bound of what FA2's plan allocates: float32 partial outputs of all tiles, and their log-sums.

    From `PrefillPlan` in FlashInfer's scheduler: query heads x tiles x rows of a tile x (head_dim + 1) values, with
    grouped query heads packed into rows and at least one tile for every sequence and every multiprocessor.
    """
    properties = torch.cuda.get_device_properties(geometry.device)
    packed_rows = layout.num_tokens * geometry.num_heads // geometry.num_kv_heads
    spare_tiles = layout.num_sequences + 2 * properties.multi_processor_count
    return geometry.num_heads * (packed_rows + spare_tiles * _FA2_TILE_ROWS) * (geometry.head_dim + 1) * 4


def _grow(workspace: _Workspace, num_bytes: int) -> None:
    """Make room for a larger layout. Earlier layouts keep the buffer their recordings point to.

    At least twice as much as before: however many layouts come, each a little larger than the last, what is kept of
    smaller buffers is together no more than the largest.
    """
    if workspace.floats.numel() < num_bytes:
        room = max(num_bytes, 2 * workspace.floats.numel())
        workspace.floats = torch.empty(room, dtype=torch.uint8, device=workspace.floats.device)
