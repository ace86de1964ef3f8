"""Reading a checkpoint's tensors: safetensors only, whatever prefix its author saved them under."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open

from rose_backend.errors import CheckpointError

_OLD_NORM_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class Weights:
    """Tensors of one checkpoint by name, cast and moved as they are taken.

    Args:
        folder: holds `model.safetensors`, or shards with `model.safetensors.index.json`.
        anchor: a tensor name every checkpoint of the architecture has; it tells the prefix.
        prefixes: prefixes to try, e.g. `("", "bert.")`.
        device: where the tensors go.
        dtype: what they are cast to.

    Raises:
        CheckpointError: no safetensors file, or no prefix fits.
    """

    def __init__(
        self, folder: Path, anchor: str, prefixes: tuple[str, ...], device: torch.device, dtype: torch.dtype
    ) -> None:
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

    def take(self, name: str) -> torch.Tensor:
        """The tensor `name` (without the checkpoint's prefix) on the target device.

        Raises:
            CheckpointError: the checkpoint has no such tensor.
        """
        path = self._files.get(self._prefix + name)
        if path is None:
            raise CheckpointError(f"checkpoint has no tensor {self._prefix + name!r}")
        with safe_open(path, framework="pt") as file:
            stored: torch.Tensor = file.get_tensor(_stored_name(file.keys(), self._prefix + name))
        return stored.to(self._device, self._dtype).contiguous()

    def stack(self, *names: str) -> torch.Tensor:
        """Several tensors joined along dimension 0: what a fused projection multiplies with."""
        return torch.cat([self.take(name) for name in names])


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Every tensor's current name and the file that holds it."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if index.is_file():
        shards = {folder / shard for shard in json.loads(index.read_text())["weight_map"].values()}
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
        with safe_open(shard, framework="pt") as file:
            files.update({_current_name(name): shard for name in file.keys()})  # noqa: SIM118 (not a dict)
    return files


def _current_name(stored: str) -> str:
    """Checkpoints of TensorFlow origin call a norm's parameters gamma and beta."""
    for old, new in _OLD_NORM_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored


def _stored_name(stored_names: list[str], name: str) -> str:
    """The name a file uses for a tensor whose current name is `name`."""
    return next(stored for stored in stored_names if _current_name(stored) == name)
