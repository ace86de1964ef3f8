"""A batch's table of spans on its way to the device, apart from the block that every batch sends."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose_backend.core import Int32Array
from rose_backend.cuda_driver import CudaDriver
from rose_backend.lazy_tensor import PinnedRing

_ALIGNED = 4  # int32 values in 16 bytes; see `staging.py`
_FIRST_CAPACITY = 3 * 512


@dataclass(frozen=True)
class DeviceSpans:
    """Tokens that have a vector together, and how it is scaled.

    Attributes:
        starts: `[num_spans]` int32, into all tokens of a step.
        stops: as many; equal to the start where there are no tokens.
        normalize: as many; see `Request.scaling`.
    """

    starts: torch.Tensor
    stops: torch.Tensor
    normalize: torch.Tensor

    @classmethod
    def of(cls, table: torch.Tensor, num_spans: int) -> DeviceSpans:
        """The first columns of the rows of a table."""
        starts, stops, normalize = table[:, :num_spans]
        return cls(starts, stops, normalize)


class SpanStaging:
    """Copies tables through page-locked memory, without waiting for the device.

    Args:
        device: a CUDA device.
        driver: makes the copies.
    """

    def __init__(self, device: torch.device, driver: CudaDriver) -> None:
        self._device = device
        self._driver = driver
        self._ring = PinnedRing(_FIRST_CAPACITY, torch.int32)

    def send(self, spans: Int32Array, stream: int) -> DeviceSpans:
        """Send a `[3, num_spans]` table, in the order of `DeviceSpans`; it is there for what comes next in the stream.

        Args:
            spans: of the batch.
            stream: handle of the thread's current stream.
        """
        count = spans.shape[1]
        padded = -(-count // _ALIGNED) * _ALIGNED
        staged, address, events = self._ring.take(len(spans), padded)
        assert events is not None
        staged[:, :count] = spans
        table = torch.empty((len(spans), padded), dtype=torch.int32, device=self._device)
        self._driver.copy_to_device(table.data_ptr(), address, staged.nbytes, stream)
        self._driver.record(events.copied.cuda_event, stream)  # the slot is free after it
        return DeviceSpans.of(table, count)
