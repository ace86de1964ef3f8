"""Taking a checkpoint's tensors, whatever prefix its author saved them under."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from rose_backend.errors import CheckpointError
from rose_backend.kernels.packing import pack
from rose_backend.tensor_files import TensorFiles

PREFIXES = ("", "model.", "bert.", "roberta.", "xlm-roberta.", "camembert.", "nomic_bert.")
"""What authors save tensors under: nothing, a class's own name, or that of a model around it."""

_SERVED_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Weights:
    """Tensors of one checkpoint by name, cast and moved as they are taken.

    Args:
        folder: holds the tensors; see `TensorFiles`.
        anchor: a tensor name every checkpoint of the architecture has; it tells the prefix.
        prefixes: prefixes to try, e.g. `PREFIXES`.
        device: where the tensors go.
        dtype: what they are cast to.

    Raises:
        CheckpointError: no file of tensors, one that cannot be read, a malformed index, no prefix fits, or the
            checkpoint is quantized.
    """

    def __init__(
        self, folder: Path, anchor: str, prefixes: tuple[str, ...], device: torch.device, dtype: torch.dtype
    ) -> None:
        _refuse_quantization(folder / "config.json")
        self._files = TensorFiles(folder)
        self._device = device
        self._dtype = dtype
        for prefix in prefixes:
            if prefix + anchor in self._files:
                self._prefix = prefix
                return
        raise CheckpointError(
            f"{folder}: no tensor named {anchor!r} under any of the prefixes {list(prefixes)}; "
            f"the file starts with {self._files.names()[:3]}"
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
        path, stored = self._files.path(self._prefix + name), self._files.tensor(self._prefix + name)
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
        rows = self._files.rows(self._prefix + name, indices)
        return rows.to(self._device, self._dtype).contiguous()

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

    def projection(self, *names: str, shape: tuple[int, int] | None = None) -> torch.Tensor:
        """As `stack`, for a matrix that is only multiplied with; see `pack`."""
        return pack(self.stack(*names, shape=shape))


def _refuse_quantization(path: Path) -> None:
    """Weights that need scales of their own would be read as numbers they do not stand for."""
    if not path.is_file():
        return
    values = json.loads(path.read_text(encoding="utf-8"))
    quantization = values.get("quantization_config") if isinstance(values, dict) else None
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise CheckpointError(f"{path} has a quantization_config ({method}): quantized weights are not served")
