"""FlashInfer's ragged attention kernels that are compiled ahead of time: their names, their folder, what is missing.

FlashInfer compiles a kernel the first time a batch needs it, which stalls that batch for minutes. Kernels that lie
in its ahead-of-time folder load at once. This is what a server needs to know of them; it has no compiler.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DISTRIBUTION = "flashinfer-python"
STAMP = "build.json"
"""File beside each kernel that was built here: the FlashInfer version it was compiled from."""

_HEAD_DIMS = (64, 128, 256)


class FlashInferKernelError(RuntimeError):
    """Base of what can go wrong with these kernels; the message says what to install or to change."""


class FlashInferNotInstalledError(FlashInferKernelError):
    """FlashInfer, or a package that it needs, cannot be imported."""


@dataclass(frozen=True)
class KernelSpec:
    """One ragged attention kernel; it serves causal and bidirectional masks and any number of heads.

    Attributes:
        backend: `fa2` (compute capability 8.0 and later) or `fa3` (Hopper, 9.0a, alone).
        head_dim: elements in a query, key and value head: 64, 128 or 256.
        dtype: of queries, keys, values and output. The batch's offsets are int32.
        sliding_window: whether batches set a left window; that is a kernel of its own.

    Raises:
        ValueError: for a field outside its range.
    """

    backend: Literal["fa2", "fa3"]
    head_dim: int
    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    sliding_window: bool = False

    def __post_init__(self) -> None:
        """Refuse what FlashInfer has no kernel for."""
        if self.backend not in ("fa2", "fa3"):
            raise ValueError(f"backend is 'fa2' or 'fa3', not {self.backend!r}")
        if self.head_dim not in _HEAD_DIMS:
            raise ValueError(f"head_dim is one of {_HEAD_DIMS}, not {self.head_dim}")
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError(f"dtype is 'bfloat16' or 'float16', not {self.dtype!r}")

    def __str__(self) -> str:
        window = ", sliding window" if self.sliding_window else ""
        return f"{self.backend}, head_dim {self.head_dim}, {self.dtype}{window}"


def kernel_name(spec: KernelSpec) -> str:
    """Name of the module that FlashInfer's ragged wrapper looks up in `plan()` for this kernel.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
    """
    try:
        import torch
        from flashinfer.jit.attention import get_batch_prefill_uri
    except (ImportError, RuntimeError) as error:  # the second where its own packages' versions differ
        raise _not_installed(error) from error
    dtype: torch.dtype = getattr(torch, spec.dtype)
    # position encoding 0 (none), sliding window, no logits soft cap, no fp16 reduction of QK
    shape = (spec.head_dim, spec.head_dim, 0, spec.sliding_window, False, False)
    return str(get_batch_prefill_uri(spec.backend, dtype, dtype, dtype, torch.int32, *shape))


def aot_folder() -> Path:
    """The folder in which FlashInfer looks for kernels that need no compiler; it may not exist yet.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
    """
    try:
        from flashinfer.jit import env
    except (ImportError, RuntimeError) as error:  # the second where its own packages' versions differ
        raise _not_installed(error) from error
    return Path(env.FLASHINFER_AOT_DIR)


def installed_version() -> str:
    """Version of the installed FlashInfer.

    Raises:
        FlashInferNotInstalledError: if it is not installed.
    """
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _not_installed(error) from error


def built_from(folder: Path) -> str | None:
    """FlashInfer version that a kernel's folder was built from; None where there is no `STAMP`."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return "(unreadable)"
    return str(stamp.get(DISTRIBUTION)) if isinstance(stamp, dict) else "(unreadable)"


def missing(specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """The kernels that FlashInfer would have to compile, or that were built from another version of it.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
    """
    folder = aot_folder()
    return [spec for spec in specs if not _is_current(folder / kernel_name(spec))]


def _is_current(folder: Path) -> bool:
    """Whether a folder holds a library of the installed version; unstamped ones came with FlashInfer."""
    if not (folder / f"{folder.name}.so").is_file():
        return False
    return built_from(folder) in (None, installed_version())


def _not_installed(error: Exception) -> FlashInferNotInstalledError:
    return FlashInferNotInstalledError(f"FlashInfer does not import ({error}): pip install {DISTRIBUTION}")
