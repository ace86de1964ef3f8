"""Typed errors, each with the status its sender receives."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Status(str, Enum):
    """Outcome classes of a request, named as in Triton's `TRITONSERVER_Error_Code`."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class RoseError(Exception):
    """Base of every error that answers a request or refuses to start."""

    status: ClassVar[Status] = Status.INTERNAL


class InvalidArgumentError(RoseError):
    """The sender's fault: the message names the field, what it held and the limit."""

    status = Status.INVALID_ARG


class UnavailableError(RoseError):
    """Not now: queue full, deadline passed, or shutting down. The same request may succeed later."""

    status = Status.UNAVAILABLE


class EngineError(RoseError):
    """A step failed on the device; the message carries the cause."""

    status = Status.INTERNAL


class CheckpointError(RoseError):
    """A checkpoint folder cannot be served as its files ask; the message names the file and the key."""

    status = Status.INVALID_ARG
