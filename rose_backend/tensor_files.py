"""The files that a checkpoint's tensors lie in: safetensors, or pickles of which nothing is run; whole or in shards."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rose_backend.errors import CheckpointError

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"
_PICKLED = frozenset({".bin", ".pt"})
_OLD_NORM_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class TensorFiles:
    """The tensors of a folder, by today's names, as they are stored.

    Of several forms in one folder the one is read that transformers reads: safetensors before pickles, a whole file
    before shards.

    Args:
        folder: holds `model.safetensors` or `pytorch_model.bin`, or shards of either with an index.

    Raises:
        CheckpointError: there is none, one cannot be read, or an index is malformed.
    """

    def __init__(self, folder: Path) -> None:
        self._pickled: dict[Path, Mapping[str, torch.Tensor]] = {}
        self._places: dict[str, tuple[Path, str]] = {}  # by today's name: the file, and the name there
        for path in _paths(folder):
            with self._opened(path) as file:
                self._places.update({_current_name(name): (path, name) for name in file.keys()})  # noqa: SIM118

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def names(self) -> list[str]:
        """Every tensor's, sorted."""
        return sorted(self._places)

    def path(self, name: str) -> Path:
        """The file that holds a tensor.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._place(name)[0]

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU.

        Raises:
            CheckpointError: there is no such tensor, or its file can no longer be read.
        """
        path, stored = self._place(name)
        with self._opened(path) as file:
            found: torch.Tensor = file.get_tensor(stored)
        return found

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Some rows of a matrix, `[len(indices), columns]`; the others are not read.

        Raises:
            CheckpointError: there is no such tensor, or it has not so many rows.
        """
        path, stored = self._place(name)
        with self._opened(path) as file:
            matrix = file.get_slice(stored)
            count = matrix.get_shape()[0]
            if not all(0 <= index < count for index in indices):
                raise CheckpointError(f"{path}: tensor {name!r} has {count} rows, not all of {indices}")
            return torch.cat([matrix[index : index + 1] for index in indices])

    def _place(self, name: str) -> tuple[Path, str]:
        place = self._places.get(name)
        if place is None:
            raise CheckpointError(f"checkpoint has no tensor {name!r}")
        return place

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        """A file of tensors; faults in it, found on opening or reading, name it."""
        if path.suffix in _PICKLED:
            if path not in self._pickled:
                self._pickled[path] = load_pickled(path)
            yield _Pickled(self._pickled[path])
            return
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as cause:
            raise CheckpointError(f"{path} is not a readable safetensors file: {cause}") from cause


class _Pickled:
    """Loaded tensors, to be read as `safe_open` is."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def keys(self) -> list[str]:
        return list(self._tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name])


class _Slice:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, part: slice) -> torch.Tensor:
        return self._tensor[part]


def has_weights(folder: Path) -> bool:
    """Whether a folder holds any file that `TensorFiles` looks for."""
    return any((folder / (name + suffix)).is_file() for name in _WHOLE for suffix in ("", _INDEX))


def load_pickled(path: Path) -> Mapping[str, torch.Tensor]:
    """The tensors by name that `torch.save` wrote; of the pickle no code is run, and data is read as it is used.

    Raises:
        CheckpointError: the file holds something else, or cannot be read.
    """
    try:
        # Files of releases before 1.6 are no archives, which alone can be mapped into memory.
        stored = torch.load(path, "cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as cause:  # damaged files raise whatever their bytes lead to
        # Without the library's own words, which advise running the pickle.
        raise CheckpointError(f"{path} is not a readable file of tensors ({type(cause).__name__})") from cause
    if not isinstance(stored, Mapping) or not all(isinstance(value, torch.Tensor) for value in stored.values()):
        raise CheckpointError(f"{path} does not hold tensors by name")
    return stored


def _paths(folder: Path) -> list[Path]:
    """The files that the tensors are spread over."""
    for name in _WHOLE:
        path, index = folder / name, folder / (name + _INDEX)
        if path.is_file():
            return [path]
        if index.is_file():
            shards = sorted(folder / shard for shard in _shard_names(index))
            for shard in shards:
                if not shard.is_file():
                    raise CheckpointError(f"{index} names {shard.name}, which is missing")
            return shards
    raise CheckpointError(f"{folder}: found neither {' nor '.join(_WHOLE)}, nor an index of either's shards")


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


def _current_name(stored: str) -> str:
    """Checkpoints of TensorFlow origin call a norm's parameters gamma and beta."""
    for old, new in _OLD_NORM_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored
