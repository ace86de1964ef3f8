"""From token vectors to vectors, in float32: pooling, projections (Dense modules), scaling.

The rules are those of sentence-transformers' `Pooling`, `Dense` and `Normalize` modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file

from rose_backend.config import Activation, DenseConfig, HeadConfig, PoolingMode
from rose_backend.core import Field, Output
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Ops
from rose_backend.quantize import Quantizer
from rose_backend.spans import DeviceSpans
from rose_backend.staging import DeviceInputs
from rose_backend.tensor_files import load_pickled

_LONE_MODES = ((PoolingMode.MEAN,), (PoolingMode.CLS,), (PoolingMode.LAST,))
ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.IDENTITY: lambda x: x,
    Activation.TANH: torch.tanh,
    Activation.GELU: F.gelu,
    Activation.RELU: F.relu,
    Activation.SILU: F.silu,
    Activation.SIGMOID: torch.sigmoid,
}


class Head:
    """A checkpoint's head with its weights.

    Attributes:
        dim: width of a vector.
        quantizer: makes codes of vectors.
        outputs: every form that may be wanted.
        pools_spans: whether parts of sequences may have vectors: that of a part is the mean of its tokens.
        fields: what sequences may carry for it.
        single_token: CLS or LAST where all else of a sequence's token vectors goes unread; else None.

    Raises:
        CheckpointError: a projection's weights are missing or do not fit.
    """

    def __init__(self, config: HeadConfig, hidden_size: int, device: torch.device) -> None:
        self._modes = config.modes
        self._dense = []
        width = hidden_size * len(config.modes)
        for dense in config.dense:
            if dense.in_features != width:
                raise CheckpointError(
                    f"{dense.folder}: in_features is {dense.in_features}, but what comes in has {width} elements"
                )
            self._dense.append(_Dense.load(dense, device))
            width = dense.out_features
        self.dim = width
        self._sparse = _linear(config.tokens.sparse, hidden_size, device)
        self._multi_vector = _linear(config.tokens.multi_vector, hidden_size, device)
        if self._sparse is not None and len(self._sparse[1]) != 1:
            raise CheckpointError(f"{config.tokens.sparse}: expected 1 weight a token, found {len(self._sparse[1])}")
        self.quantizer = Quantizer(config, device)
        self.outputs = self.quantizer.forms | Output.TOKEN | (Output.SPARSE if self._sparse else Output(0))
        self.fields: tuple[Field, ...] = () if config.include_prompt else (Field.POOL_FROM,)
        self.pools_spans = config.modes == (PoolingMode.MEAN,)
        # The one mode, if it is one that `Ops.pool` knows and every token of a sequence is pooled.
        self._lone = config.pooling if config.modes in _LONE_MODES and config.include_prompt else None
        self.single_token = None if self._lone is PoolingMode.MEAN else self._lone

    def __call__(self, ops: Ops, hidden: torch.Tensor, inputs: DeviceInputs) -> torch.Tensor:
        """Vectors of a batch.

        Args:
            ops: of the device.
            hidden: `[tokens, hidden_size]`, contiguous.
            inputs: of the step; its offsets are those of `hidden`.

        Returns:
            `[num_sequences, dim]` float32.
        """
        normalize = inputs.normalize
        if self._lone is not None and not self._dense:
            return ops.pool(hidden, inputs.cu_seqlens, normalize, self._lone)
        pool_from = inputs.fields.get(Field.POOL_FROM)
        x = ops.pool_modes(hidden, inputs.cu_seqlens, len(normalize), self._modes, pool_from)
        for dense in self._dense:
            x = dense(x)
        return ops.scale(x, normalize)

    def forms(
        self, ops: Ops, hidden: torch.Tensor, inputs: DeviceInputs, spans: DeviceSpans | None, outputs: Output
    ) -> dict[Output, torch.Tensor]:
        """Everything that is wanted of a batch whose token vectors were kept.

        Args:
            ops: of the device.
            hidden: `[tokens, hidden_size]`, contiguous.
            inputs: of the step.
            spans: a row each; None: a row a sequence.
            outputs: the forms.
        """
        made = self.of_tokens(ops, hidden, outputs)
        if not outputs & self.quantizer.forms:
            return made
        if spans is None:
            x, normalize = self(ops, hidden, inputs), inputs.normalize
        else:
            x, normalize = self.of_spans(ops, hidden, spans), spans.normalize
        return {**self.quantizer(ops, x, normalize, outputs), **made}

    def of_tokens(self, ops: Ops, hidden: torch.Tensor, outputs: Output) -> dict[Output, torch.Tensor]:
        """What is wanted of single tokens, a row each, in float32.

        Args:
            ops: of the device.
            hidden: `[tokens, hidden_size]`, contiguous.
            outputs: forms that the checkpoint has.
        """
        made = {}
        if outputs & Output.SPARSE:
            assert self._sparse is not None
            made[Output.SPARSE] = F.relu(F.linear(hidden.float(), *self._sparse))
        if outputs & Output.TOKEN:
            x = hidden.float()
            if self._multi_vector is not None:
                x = ops.scale(F.linear(x, *self._multi_vector), torch.ones(len(x), dtype=torch.int32, device=x.device))
            made[Output.TOKEN] = x
        return made

    def of_spans(self, ops: Ops, hidden: torch.Tensor, spans: DeviceSpans) -> torch.Tensor:
        """Vectors of parts of sequences, `[num_spans, dim]` float32; a part without tokens is pooled as zeros.

        Args:
            ops: of the device.
            hidden: `[tokens, hidden_size]`, contiguous.
            spans: the parts.
        """
        x = ops.pool_spans(hidden, spans.starts, spans.stops)
        for dense in self._dense:
            x = dense(x)
        return ops.scale(x, spans.normalize)


@dataclass(frozen=True)
class _Dense:
    """One projection, in float32."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None  # [out]
    activate: Callable[[torch.Tensor], torch.Tensor]
    residual: bool
    residual_weight: torch.Tensor | None  # [out, in]; None: the input is added as it is

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.activate(F.linear(x, self.weight, self.bias))
        if not self.residual:
            return out
        return out + (x if self.residual_weight is None else F.linear(x, self.residual_weight))

    @classmethod
    def load(cls, config: DenseConfig, device: torch.device) -> _Dense:
        shapes = {"linear.weight": (config.out_features, config.in_features)}
        if config.bias:
            shapes["linear.bias"] = (config.out_features,)  # type: ignore[assignment]
        if config.residual and config.in_features != config.out_features:
            shapes["residual.weight"] = (config.out_features, config.in_features)
        tensors = _tensors(config.folder, shapes)
        tensors = {name: tensor.to(device, torch.float32).contiguous() for name, tensor in tensors.items()}
        return cls(
            tensors["linear.weight"],
            tensors.get("linear.bias"),
            ACTIVATIONS[config.activation],
            config.residual,
            tensors.get("residual.weight"),
        )


def _linear(path: Path | None, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Weight and bias, in float32, of a projection of token vectors; None where there is none."""
    if path is None:
        return None
    stored = load_pickled(path)
    if set(stored) != {"weight", "bias"}:
        raise CheckpointError(f"{path} does not hold a weight and a bias")
    weight, bias = (stored[name].to(device, torch.float32).contiguous() for name in ("weight", "bias"))
    if weight.shape != (len(bias), width):
        raise CheckpointError(f"{path}: weight has shape {list(weight.shape)}, expected {[len(bias), width]}")
    return weight, bias


def _tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, torch.Tensor]:
    """A module's tensors: exactly those named, in these shapes."""
    path = folder / "model.safetensors"
    if not path.is_file():
        path = folder / "pytorch_model.bin"
    if not path.is_file():
        raise CheckpointError(f"{folder}: found neither model.safetensors nor pytorch_model.bin")
    try:
        stored = load_file(path) if path.suffix == ".safetensors" else load_pickled(path)
    except (SafetensorError, OSError) as cause:
        raise CheckpointError(f"{path} is not a readable file of tensors: {cause}") from cause
    found = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    if found != dict(shapes):
        raise CheckpointError(f"{path} holds tensors {found}, expected {dict(shapes)}")
    return stored
