"""Input side of a step: page-locked staging, double-buffered, and the static device buffers recordings read.

Everything a batch needs lies in one int32 block, so it travels in one copy:
`[ids: num_tokens | cu_seqlens: num_sequences + 2 | normalize: num_sequences]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.buckets import Bucket
from rose_backend.core import Batch

_STAGES = 3  # one being filled, one being copied, one behind it


@dataclass(frozen=True)
class DeviceInputs:
    """Static views of the device block for one bucket.

    Attributes:
        input_ids: `[num_tokens]` int32.
        cu_seqlens: `[num_sequences + 2]` int32; the last real sequence is followed by one of padding tokens and
            then by empty ones.
        normalize: `[num_sequences]` int32.
    """

    input_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    normalize: torch.Tensor


class InputStaging:
    """Moves batches to the device without waiting for it.

    Args:
        max_tokens: most tokens of a bucket.
        max_sequences: most sequences of a bucket.
        device: a CUDA device.
    """

    def __init__(self, max_tokens: int, max_sequences: int, device: torch.device) -> None:
        size = max_tokens + 2 * max_sequences + 2
        self._device_block = torch.zeros(size, dtype=torch.int32, device=device)
        self._stages = [torch.zeros(size, dtype=torch.int32, pin_memory=True) for _ in range(_STAGES)]
        self._copied = [torch.cuda.Event() for _ in range(_STAGES)]
        self._turn = 0

    def views(self, bucket: Bucket) -> DeviceInputs:
        """Where a recording for this bucket reads its inputs."""
        return _views(self._device_block, bucket)

    def load(self, batch: Batch, bucket: Bucket) -> torch.Tensor:
        """Copy a batch into the device block, in stream order.

        Returns:
            The offsets `[num_sequences + 2]` int32 in page-locked host memory, for planning. Call `sent` when
            nothing more will read them.
        """
        self._turn = (self._turn + 1) % _STAGES
        stage = self._stages[self._turn]
        self._copied[self._turn].synchronize()  # three batches ago; the device has long read it
        host = _views(stage, bucket)
        n, tokens = batch.num_sequences, batch.num_tokens
        # Through numpy: a few memcpys, where torch's indexing would cost more than the copies.
        ids, offsets, flags = host.input_ids.numpy(), host.cu_seqlens.numpy(), host.normalize.numpy()
        ids[:tokens] = batch.input_ids
        ids[tokens:] = 0
        offsets[: n + 1] = batch.cu_seqlens
        offsets[n + 1 :] = bucket.num_tokens
        flags[:n] = batch.normalize
        flags[n:] = 0
        used = bucket.num_tokens + 2 * bucket.num_sequences + 2
        self._device_block[:used].copy_(stage[:used], non_blocking=True)
        return host.cu_seqlens

    def sent(self) -> None:
        """Everything that reads the current stage is in the stream; it may be reused once that has run."""
        self._copied[self._turn].record()


def _views(block: torch.Tensor, bucket: Bucket) -> DeviceInputs:
    tokens, sequences = bucket.num_tokens, bucket.num_sequences
    offsets_end = tokens + sequences + 2
    return DeviceInputs(block[:tokens], block[tokens:offsets_end], block[offsets_end : offsets_end + sequences])
