"""What a client raises when the server refuses or cannot be reached."""

from __future__ import annotations

from tritonclient.utils import InferenceServerException


class RequestError(Exception):
    """A request failed.

    Attributes:
        status: the gRPC status, e.g. `INVALID_ARGUMENT`, `UNAVAILABLE`, `DEADLINE_EXCEEDED`.
        message: the server's own words.
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
