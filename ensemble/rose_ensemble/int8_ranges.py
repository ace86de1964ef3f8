"""`rose_int8_ranges.json`: the range of each element of a checkpoint's vectors, measured once, for int8 codes.

    {"ranges": [{"dimensions": 384, "normalize": true, "min": [384 numbers], "max": [384 numbers]}, ...]}

An entry a way of cutting and scaling vectors. Vectors that are not scaled have one entry of full width, since cutting
leaves their elements as they are. It lies next to `modules.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rose_backend.config import Ranges
from rose_backend.core import Float32Array
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint_files import CheckpointFiles, flag, positive_number, refuse_unknown

RANGES_FILE = "rose_int8_ranges.json"

_SMALLEST_NORM = 1e-12


def read_ranges(files: CheckpointFiles, folder: Path, dim: int) -> tuple[Ranges, ...]:
    """The ranges of a checkpoint; none where there is no file.

    Args:
        files: reads it.
        folder: of the checkpoint.
        dim: of a whole vector.

    Raises:
        CheckpointError: the file is malformed, or made for vectors of another width.
    """
    path = folder / RANGES_FILE
    values = files.mapping(path, optional=True)
    entries = values.get("ranges", [])
    refuse_unknown(path, values, ("ranges",))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CheckpointError(f"{path}: ranges is no list of JSON objects")
    found = tuple(_entry(path, entry, dim) for entry in entries)
    if len({ranges.scaling for ranges in found}) < len(found):
        raise CheckpointError(f"{path}: two entries are for vectors cut and scaled alike")
    return found


def measure_ranges(vectors: Float32Array, sizes: tuple[int, ...]) -> dict[str, Any]:
    """What the file holds for a checkpoint with such vectors.

    Args:
        vectors: `[num_texts, dim]`, neither cut nor scaled.
        sizes: lengths to which vectors may be cut and then scaled, besides the whole one.
    """
    dim = vectors.shape[1]
    entries = [_measured(vectors, normalize=False)]
    for size in (*sizes, dim):
        cut = vectors[:, :size]
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        entries.append(_measured(cut / np.maximum(norms, _SMALLEST_NORM), normalize=True))
    return {"ranges": entries}


def write_ranges(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write the file, whole or not at all; returns where it is."""
    path = folder / RANGES_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(values))
    temporary.replace(path)
    return path


def _measured(vectors: Float32Array, *, normalize: bool) -> dict[str, Any]:
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    return {"dimensions": vectors.shape[1], "normalize": normalize, "min": low.tolist(), "max": high.tolist()}


def _entry(path: Path, entry: Mapping[str, Any], dim: int) -> Ranges:
    refuse_unknown(path, entry, ("dimensions", "normalize", "min", "max"))
    size = positive_number(path, entry, "dimensions")
    normalize = flag(path, entry, "normalize", default=False)
    if size > dim or (size < dim and not normalize):
        raise CheckpointError(f"{path}: dimensions is {size}, but vectors have {dim} elements")
    low, high = (_numbers(path, entry, key, size) for key in ("min", "max"))
    if any(one > other for one, other in zip(low, high, strict=True)):
        raise CheckpointError(f"{path}: a number of min is above that of max")
    rest = (0.0,) * (dim - size)  # elements that are cut off
    scaling = (1 if size == dim else -size) if normalize else 0
    return Ranges(scaling, low + rest, high + rest)


def _numbers(path: Path, entry: Mapping[str, Any], key: str, count: int) -> tuple[float, ...]:
    values = entry.get(key)
    numbers = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not numbers or len(values) != count:  # type: ignore[arg-type]
        raise CheckpointError(f"{path}: {key} does not hold {count} finite numbers")
    return tuple(map(float, values))  # type: ignore[arg-type]
