"""The handle a step returns: a host buffer that becomes valid when the device has caught up."""

from __future__ import annotations

import torch

from rose_backend.core import Float32Array


class LazyTensor:
    """Vectors of one batch, `[num_sequences, dim]` float32 on the host, perhaps still on their way.

    Args:
        host: the host tensor; page-locked where a device copies into it.
        event: recorded after the copy; None where the values are already there.
    """

    def __init__(self, host: torch.Tensor, event: torch.cuda.Event | None = None) -> None:
        self._host = host
        self._event = event

    def ready(self) -> bool:
        """Whether `numpy` would return without waiting."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Block until the values are on the host; other threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()

    def numpy(self) -> Float32Array:
        """Wait, then return the values, `[num_sequences, dim]` float32, without copying."""
        self.wait()
        rows: Float32Array = self._host.numpy()
        return rows
