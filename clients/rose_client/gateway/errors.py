"""What went wrong, once, and how each API says it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from rose_client.errors import RequestError
from rose_client.retries import hinted_wait, is_absent, is_dead_stub

_ELEMENT = re.compile(r"TEXT element (\d+)")
_FULL = re.compile(r"queue is full|maximum queue size", re.IGNORECASE)
_EXPIRED = re.compile(r"timeout expired", re.IGNORECASE)
_TOO_LARGE = re.compile(r"message larger than", re.IGNORECASE)
_LACKS = re.compile(r"but this checkpoint has no ")
_WHERE = re.compile(r"^in ensemble '[^']*', (?:\[request id: [^\]]*\] )?")
_SOON = 1.0  # seconds after which to come back where the server has no idea

INPUT_FORMS = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
_TELLING = ("greater_than_equal", "less_than")  # right in kind, wrong in value

_TEI_ROUTES = frozenset(
    {"/", "/embed", "/embed_all", "/embed_sparse", "/rerank", "/similarity", "/tokenize", "/info", "/health", "/ping"}
)
_COHERE_ROUTES = frozenset({"/v1/rerank", "/v2/rerank", "/v2/embed"})
_TEI_TYPES = {400: "Empty", 401: "Unauthorized", 413: "Validation", 422: "Validation", 424: "Backend"}
_TEI_TYPES |= {429: "Overloaded", 502: "Backend", 503: "Unhealthy", 504: "Backend"}


class GatewayError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP; where an API has its own for the same thing, `error_response` changes it.
        code: a word for programs.
        message: names the field and the limit.
        param: the field, if one is to blame.
        retry_after: seconds after which to come back.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message.encode(errors="backslashreplace").decode()  # it may quote what no UTF-8 can express
        self.param = param
        self.retry_after = retry_after

    @classmethod
    def invalid(cls, message: str, param: str | None = None) -> GatewayError:
        """The sender's mistake."""
        return cls(400, "invalid_request", message, param=param)

    @classmethod
    def empty(cls, param: str) -> GatewayError:
        """Nothing to work on."""
        return cls(400, "empty", f"{param} is empty: a request needs at least one", param=param)

    @classmethod
    def unsupported(cls, message: str, param: str | None = None) -> GatewayError:
        """The model does not offer what was asked for."""
        return cls(400, "unsupported", message, param=param)

    @classmethod
    def of(cls, error: RequestError, field: str) -> GatewayError:
        """Translate a server's refusal.

        Args:
            error: the server's.
            field: what the route calls the texts.
        """
        message = _ELEMENT.sub(lambda found: f"{field}[{found[1]}]", _WHERE.sub("", error.message))
        if error.status == "INVALID_ARGUMENT":
            return cls.unsupported(message) if _LACKS.search(message) else cls.invalid(message)
        if error.status == "DEADLINE_EXCEEDED" or (error.status == "UNAVAILABLE" and _EXPIRED.search(message)):
            return cls(504, "deadline_exceeded", message)
        if error.status == "RESOURCE_EXHAUSTED" and _TOO_LARGE.search(message):
            return cls(413, "too_large", message)
        if error.status == "RESOURCE_EXHAUSTED" or (error.status == "UNAVAILABLE" and _FULL.search(message)):
            return cls(429, "overloaded", message, retry_after=hinted_wait(message) or _SOON)
        if error.status == "UNAVAILABLE" or is_absent(error) or is_dead_stub(error):
            return cls(503, "unavailable", message, retry_after=hinted_wait(message) or _SOON)
        if error.status == "NOT_FOUND":
            return cls(404, "model_not_found", message, param="model")
        return cls(502, "upstream_error", f"{error.status}: {message}")


def error_response(path: str, error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
    """The error as the API of the path words it."""
    status, body = _style(path)(error)
    sent = dict(headers or {})
    if error.retry_after is not None:
        sent["retry-after"] = str(math.ceil(error.retry_after))
        sent["retry-after-ms"] = str(math.ceil(error.retry_after * 1e3))
    if status == 401:
        sent["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(body), status, sent, "application/json")


def of_validation(problems: Sequence[Any]) -> GatewayError:
    """The most telling problem, in words that name the field."""
    problem = next((problem for problem in problems if problem["type"] in _TELLING), problems[0])
    place = [part for part in problem["loc"] if part != "body"]
    kind = problem["type"]
    if kind == "json_invalid":
        return GatewayError.invalid(f"the body is not valid JSON: {problem.get('ctx', {}).get('error', '')}")
    if not place:
        return GatewayError.invalid("the body is not a JSON object; send it as application/json")
    field = str(place[0])
    if place[1:] == ["str"]:  # the first of the forms it may have
        return GatewayError.invalid(f"{field} must be {INPUT_FORMS}", field)
    name = ".".join(str(part) for part in place if not str(part).startswith("list["))
    if kind == "missing":
        return GatewayError.invalid(f"{name} is missing", field)
    if kind == "extra_forbidden":
        return GatewayError.invalid(f"{name} is not known", field)
    return GatewayError.invalid(f"{name}: {problem['msg']}", field)


def _style(path: str) -> Callable[[GatewayError], tuple[int, Any]]:
    if path in _TEI_ROUTES:
        return _tei
    return _cohere if path in _COHERE_ROUTES else _openai


def _openai(error: GatewayError) -> tuple[int, Any]:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    if error.status in (401, 429):
        kind = {401: "authentication_error", 429: "rate_limit_error"}[error.status]
    return error.status, {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _cohere(error: GatewayError) -> tuple[int, Any]:
    return error.status, {"message": error.message}


def _tei(error: GatewayError) -> tuple[int, Any]:
    status = error.status
    if status == 400:
        status = {"empty": 400, "unsupported": 424}.get(error.code, 422)
    return status, {"error": error.message, "error_type": _TEI_TYPES.get(status, "Validation")}
