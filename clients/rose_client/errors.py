"""What a client raises when the server refuses or cannot be reached."""

from __future__ import annotations

import re

import grpc
from tritonclient.utils import InferenceServerException

_ELEMENT = re.compile(r"(?<=TEXT element )\d+")


class RequestError(Exception):
    """A request failed.

    Attributes:
        status: the gRPC status, e.g. `INVALID_ARGUMENT`, `UNAVAILABLE`, `DEADLINE_EXCEEDED`.
        message: the server's own words; of a call in several chunks, behind the texts of the one that failed.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message

    @classmethod
    def of(cls, cause: InferenceServerException) -> RequestError:
        """Translate tritonclient's exception."""
        status = str(cause.status() or "UNKNOWN").removeprefix("StatusCode.")
        return cls(status, str(cause.message()))

    @classmethod
    def of_call(cls, cause: grpc.Call) -> RequestError:
        """Translate what a call of gRPC ended with."""
        return cls(cause.code().name, cause.details() or "")

    def of_texts(self, first: int, count: int) -> RequestError:
        """The same failure, told of `count` texts of a larger call from number `first` on, counted from 0.

        A server counts within its request; what it calls a TEXT element is renumbered to the call's.
        """
        message = _ELEMENT.sub(lambda found: str(int(found[0]) + first), self.message)
        return RequestError(self.status, f"texts {first} to {first + count - 1}: {message}")
