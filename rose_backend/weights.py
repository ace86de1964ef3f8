"""Reading a checkpoint's tensors: safetensors only, whatever prefix its author saved them under."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rose_backend.errors import CheckpointError

PREFIXES = ("", "model.", "bert.", "roberta.", "xlm-roberta.", "camembert.", "nomic_bert.")
"""What authors save tensors under: nothing, a class's own name, or that of a model around it."""

_SERVED_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_OLD_NORM_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class Weights:
    """Tensors of one checkpoint by name, cast and moved as they are taken.

    Args:
        folder: holds `model.safetensors`, or shards with `model.safetensors.index.json`.
        anchor: a tensor name every checkpoint of the architecture has; it tells the prefix.
        prefixes: prefixes to try, e.g. `PREFIXES`.
        device: where the tensors go.
        dtype: what they are cast to.

    Raises:
        CheckpointError: no safetensors file, one that cannot be read, a malformed index, no prefix fits, or the
            checkpoint is quantized.
    """

    def __init__(
        self, folder: Path, anchor: str, prefixes: tuple[str, ...], device: torch.device, dtype: torch.dtype
    ) -> None:
        _refuse_quantization(folder / "config.json")
        self._files = _tensor_files(folder)
        self._device = device
        self._dtype = dtype
        for prefix in prefixes:
            if prefix + anchor in self._files:
                self._prefix = prefix
                return
        raise CheckpointError(
            f"{folder}: no tensor named {anchor!r} under any of the prefixes {list(prefixes)}; "
            f"the file starts with {sorted(self._files)[:3]}"
        )

    def take(
        self, name: str, *, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """The tensor `name` (without the checkpoint's prefix) on the target device.

        Args:
            name: of the tensor.
            shape: which it must have; None: any.
            dtype: what it is cast to; None: as all others.

        Raises:
            CheckpointError: the checkpoint has no such tensor, it has another shape than is expected, or it is not of
                plain floating-point numbers.
        """
        path = self._files.get(self._prefix + name)
        if path is None:
            raise CheckpointError(f"checkpoint has no tensor {self._prefix + name!r}")
        with _opened(path) as file:
            stored: torch.Tensor = file.get_tensor(_stored_name(file.keys(), self._prefix + name))
        if shape is not None and stored.shape != shape:
            raise CheckpointError(
                f"{path}: tensor {self._prefix + name!r} has shape {list(stored.shape)}, expected {list(shape)}"
            )
        if stored.dtype not in _SERVED_DTYPES:
            raise CheckpointError(
                f"{path}: tensor {self._prefix + name!r} holds {stored.dtype}; served: {[*map(str, _SERVED_DTYPES)]}"
            )
        return stored.to(self._device, dtype or self._dtype).contiguous()

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Some rows of the matrix `name`, `[len(indices), columns]`; the others are not read.

        Raises:
            CheckpointError: the checkpoint has no such tensor, or not so many rows.
        """
        path = self._files.get(self._prefix + name)
        if path is None:
            raise CheckpointError(f"checkpoint has no tensor {self._prefix + name!r}")
        with _opened(path) as file:
            stored = file.get_slice(self._prefix + name)
            count = stored.get_shape()[0]
            if not all(0 <= index < count for index in indices):
                raise CheckpointError(f"{path}: tensor {self._prefix + name!r} has {count} rows, not all of {indices}")
            rows = [stored[index : index + 1] for index in indices]
        return torch.cat(rows).to(self._device, self._dtype).contiguous()

    def stack(self, *names: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """Several tensors joined along dimension 0: what a fused projection multiplies with.

        Raises:
            CheckpointError: the checkpoint lacks one, they differ in another dimension, or what they make together
                has another shape than is expected.
        """
        tensors = [self.take(name) for name in names]
        shapes = {self._prefix + name: list(tensor.shape) for name, tensor in zip(names, tensors, strict=True)}
        if len({tensor.shape[1:] for tensor in tensors}) > 1:
            raise CheckpointError(f"checkpoint has tensors that cannot be joined: {shapes}")
        joined = torch.cat(tensors)
        if shape is not None and joined.shape != shape:
            raise CheckpointError(f"checkpoint has tensors {shapes}, expected {list(shape)} together")
        return joined


def _refuse_quantization(path: Path) -> None:
    """Weights that need scales of their own would be read as numbers they do not stand for."""
    if not path.is_file():
        return
    values = json.loads(path.read_text(encoding="utf-8"))
    quantization = values.get("quantization_config") if isinstance(values, dict) else None
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise CheckpointError(f"{path} has a quantization_config ({method}): quantized weights are not served")


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Every tensor's current name and the file that holds it."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if index.is_file():
        shards = {folder / shard for shard in _shard_names(index)}
    elif single.is_file():
        shards = {single}
    else:
        raise CheckpointError(
            f"{folder}: found neither model.safetensors nor model.safetensors.index.json "
            "(pickled .bin files are not read)"
        )
    files: dict[str, Path] = {}
    for shard in sorted(shards):
        if not shard.is_file():
            raise CheckpointError(f"{index} names {shard.name}, which is missing")
        with _opened(shard) as file:
            files.update({_current_name(name): shard for name in file.keys()})  # noqa: SIM118 (not a dict)
    return files


def _shard_names(index: Path) -> set[str]:
    """The files an index spreads the tensors over, all within its folder."""
    try:
        values = json.loads(index.read_text(encoding="utf-8"))
    except ValueError as cause:
        raise CheckpointError(f"{index} is not valid JSON: {cause}") from cause
    weight_map = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index} has no weight_map from tensor names to files")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{index}: weight_map names {shard!r} for {tensor!r}, not a file")
        # By its name alone: a download cache makes files links to elsewhere.
        if PurePath(shard).is_absolute() or ".." in PurePath(shard).parts:
            raise CheckpointError(f"{index}: weight_map names {shard!r}, which lies outside the folder")
    return set(weight_map.values())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; faults in it, found on opening or reading, name it."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as cause:
        raise CheckpointError(f"{path} is not a readable safetensors file: {cause}") from cause


def _current_name(stored: str) -> str:
    """Checkpoints of TensorFlow origin call a norm's parameters gamma and beta."""
    for old, new in _OLD_NORM_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored


def _stored_name(stored_names: list[str], name: str) -> str:
    """The name a file uses for a tensor whose current name is `name`."""
    return next(stored for stored in stored_names if _current_name(stored) == name)
