"""Device names, as flags and instance groups spell them."""

from __future__ import annotations

import re

from rose_backend.errors import InvalidArgumentError

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def parse_devices(text: str) -> tuple[str, ...]:
    """A comma-separated list such as `cuda:0,cuda:1`, one engine each; a device may appear several times.

    Raises:
        InvalidArgumentError: names the part that is no device.
    """
    devices = tuple(part.strip() for part in text.split(","))
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise InvalidArgumentError(f"device {device!r}: expected auto, cpu or cuda:N")
    return devices


def resolve_device(device: str) -> str:
    """What `auto` means on this machine: the first GPU if torch sees one, else the CPU."""
    if device != "auto":
        return device
    import torch  # not needed to write repositories, and slow to import

    return "cuda:0" if torch.cuda.is_available() else "cpu"
