"""Typed errors, each with the status its sender receives."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, TypeVar

_Error = TypeVar("_Error", bound="RoseError")


class Status(str, Enum):
    """Outcome classes of a request, named as in Triton's `TRITONSERVER_Error_Code`."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class RoseError(Exception):
    """Base of every error that answers a request or refuses to start."""

    status: ClassVar[Status] = Status.INTERNAL

    def as_value(self: _Error) -> _Error:
        """This error, to be kept beside results: without the frames in which it was raised, and what it came from.

        One of those frames may hold what this is kept in, and others hold requests: they and the memory that they share
        with the server would stay until the garbage collector came by.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


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
