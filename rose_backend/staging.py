"""Input side of a step: page-locked staging, double-buffered, and the static device buffers recordings read.

Everything a batch needs lies in one int32 block, so it travels in one copy:
`[ids: num_tokens | cu_seqlens: num_sequences + 2 | gap | normalize: num_sequences]`, and after another gap each field
that the checkpoint uses. Gaps keep every part at a multiple of 16 bytes: kernels are compiled for aligned pointers and
would be compiled again for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from rose_backend.buckets import Bucket
from rose_backend.core import Batch, Field, Int32Array
from rose_backend.cuda_driver import recorded_event

_ALIGNED = 4  # int32 values in 16 bytes
_STAGES = 3  # one being filled, one being copied, one behind it


@dataclass(frozen=True)
class DeviceInputs:
    """What a step reads; on a GPU, static views of the device block for one bucket.

    Attributes:
        input_ids: `[num_tokens]` int32.
        cu_seqlens: at least `[num_sequences + 1]` int32. On a GPU `[num_sequences + 2]`: the last real sequence is
            followed by one of padding tokens and then by empty ones.
        normalize: `[num_sequences]` int32; see `Request.scaling`.
        fields: `[num_sequences]` int32 each, those the checkpoint uses.
    """

    input_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    normalize: torch.Tensor
    fields: Mapping[Field, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One host stage as a bucket sees it: numpy to write into, and what is to be copied and planned from.

    Attributes:
        input_ids: `[num_tokens]` int32.
        cu_seqlens: `[num_sequences + 2]` int32.
        normalize: `[num_sequences]` int32.
        fields: `[num_sequences]` int32 each.
        offsets: `cu_seqlens` as a page-locked tensor, for planning.
        source: address of the page-locked block.
        target: address of the device block.
        num_bytes: to be copied.
        copied: to be recorded after everything that reads the stage is in the stream; then it may be reused.
    """

    input_ids: Int32Array
    cu_seqlens: Int32Array
    normalize: Int32Array
    fields: Mapping[Field, Int32Array]
    offsets: torch.Tensor
    source: int
    target: int
    num_bytes: int
    copied: torch.cuda.Event


class InputStaging:
    """Lays batches out in page-locked memory, to be copied without waiting for the device.

    Args:
        max_tokens: most tokens of a bucket.
        max_sequences: most sequences of a bucket.
        device: a CUDA device.
        fields: what sequences may carry.
    """

    def __init__(
        self, max_tokens: int, max_sequences: int, device: torch.device, fields: tuple[Field, ...] = ()
    ) -> None:
        self._fields = fields
        size = _size(max_tokens, max_sequences, len(fields))
        self._device_block = torch.zeros(size, dtype=torch.int32, device=device)
        self._host_blocks = [torch.zeros(size, dtype=torch.int32, pin_memory=True) for _ in range(_STAGES)]
        self._copied = [recorded_event() for _ in range(_STAGES)]
        self._turn = 0
        self._stages: dict[Bucket, list[Stage]] = {}  # views are slower to make than to fill

    def views(self, bucket: Bucket) -> DeviceInputs:
        """Where a recording for this bucket reads its inputs."""
        return _views(self._device_block, bucket, self._fields)

    def filled(self, bucket: Bucket, offsets: torch.Tensor) -> DeviceInputs:
        """Inputs apart from all others, of a batch of token 0.

        Args:
            bucket: whose shape they have.
            offsets: `[num_sequences + 2]` int32 on the host, page-locked: their `cu_seqlens`.
        """
        size = _size(bucket.num_tokens, bucket.num_sequences, len(self._fields))
        inputs = _views(self._device_block.new_zeros(size), bucket, self._fields)
        inputs.cu_seqlens.copy_(offsets, non_blocking=True)
        return inputs

    def fill(self, batch: Batch, bucket: Bucket) -> Stage:
        """Write a batch into the next stage."""
        stages = self._stages.get(bucket) or self._open(bucket)
        self._turn = (self._turn + 1) % _STAGES
        stage = stages[self._turn]
        if not stage.copied.query():  # from three batches ago: the device has long read it
            stage.copied.synchronize()
        n, tokens = batch.num_sequences, batch.num_tokens
        stage.input_ids[:tokens] = batch.input_ids
        stage.input_ids[tokens:] = 0
        stage.cu_seqlens[: n + 1] = batch.cu_seqlens
        stage.cu_seqlens[n + 1 :] = bucket.num_tokens
        stage.normalize[:n] = batch.normalize
        stage.normalize[n:] = 0
        for name, values in stage.fields.items():
            values[:n] = batch.fields.get(name, 0)
            values[n:] = 0
        return stage

    def _open(self, bucket: Bucket) -> list[Stage]:
        used = _size(bucket.num_tokens, bucket.num_sequences, len(self._fields))
        target = self._device_block.data_ptr()
        stages = []
        for block, copied in zip(self._host_blocks, self._copied, strict=True):
            host = _views(block, bucket, self._fields)
            stages.append(
                Stage(
                    host.input_ids.numpy(),
                    host.cu_seqlens.numpy(),
                    host.normalize.numpy(),
                    {name: values.numpy() for name, values in host.fields.items()},
                    host.cu_seqlens,
                    block.data_ptr(),
                    target,
                    used * block.element_size(),
                    copied,
                )
            )
        self._stages[bucket] = stages
        return stages


def _views(block: torch.Tensor, bucket: Bucket, fields: tuple[Field, ...]) -> DeviceInputs:
    tokens, sequences = bucket.num_tokens, bucket.num_sequences
    normalize, *carried = (
        block[start : start + sequences]
        for start in (_start(tokens, sequences, index) for index in range(1 + len(fields)))
    )
    offsets = block[tokens : tokens + sequences + 2]
    return DeviceInputs(block[:tokens], offsets, normalize, dict(zip(fields, carried, strict=True)))


def _start(num_tokens: int, num_sequences: int, index: int) -> int:
    """Where the numbers of each sequence start: `normalize` is the 0th of them, then come the fields.

    `num_tokens` is a multiple of 16 already; see `Bucket.fitting`.
    """
    return num_tokens + _padded(num_sequences + 2) + index * _padded(num_sequences)


def _size(num_tokens: int, num_sequences: int, num_fields: int) -> int:
    return _start(num_tokens, num_sequences, num_fields) + num_sequences


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
