"""The routes, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from rose_client.gateway.cohere_routes import cohere_routes
from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.errors import GatewayError, error_response
from rose_client.gateway.inputs import INPUT_FORMS
from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.openai_routes import openai_routes
from rose_client.gateway.operations_routes import operations_routes
from rose_client.gateway.readiness import Readiness
from rose_client.gateway.service import Service
from rose_client.gateway.shell import Shell, describe_security
from rose_client.gateway.tei_routes import tei_routes
from rose_client.gateway.vocabulary import Vocabularies

_CODES = {404: "not_found", 405: "method_not_allowed"}
_TELLING = ("greater_than_equal", "less_than", "string_unicode")  # right in kind, wrong in value
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be served; the message names the field and the limit."},
    "5XX": {"description": "No server answered in time, or none is there; try again after `Retry-After`."},
}


def create_app(config: GatewayConfig) -> ASGIApp:
    """A gateway as an ASGI application.

    Args:
        config: servers, limits and keys.
    """
    metrics = GatewayMetrics()
    routes = FastAPI(
        title="ROSE gateway",
        version=version("rose-on-triton"),
        description="Embeddings and reranking by the routes of OpenAI, Perplexity, Cohere, Jina and "
        "text-embeddings-inference.",
        lifespan=_routes_lifespan(config, metrics),
        responses=_ERRORS,
        redoc_url=None,
    )

    @routes.exception_handler(GatewayError)
    async def refused(request: Request, error: GatewayError) -> Response:
        return error_response(request.url.path, error)

    @routes.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return error_response(request.url.path, _of_validation(error.errors()))

    @routes.exception_handler(UnicodeEncodeError)
    async def inexpressible(request: Request, error: UnicodeEncodeError) -> Response:
        code = ord(error.object[error.start])
        failure = GatewayError.invalid(f"a text holds the lone surrogate U+{code:04X}, which is no character")
        return error_response(request.url.path, failure)

    @routes.exception_handler(Exception)
    async def broken(request: Request, _error: Exception) -> Response:  # the shell logs it
        failure = GatewayError(500, "internal_error", "the gateway failed; its log says why")
        return error_response(request.url.path, failure)

    @routes.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "invalid_request")
        failure = GatewayError(error.status_code, code, str(error.detail))
        return error_response(request.url.path, failure, error.headers)

    if config.api_keys:
        original = routes.openapi

        def with_security() -> dict[str, Any]:
            document = original()
            describe_security(document)
            return document

        routes.openapi = with_security  # type: ignore[method-assign]
    return Shell(routes, config, metrics)


def _routes_lifespan(config: GatewayConfig, metrics: GatewayMetrics) -> Any:
    """Connections belong to the running event loop, so they are made, and the routes with them, when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(config)
        for router in (
            openai_routes(service),
            cohere_routes(service),
            tei_routes(service, Vocabularies(service.models)),
            operations_routes(Readiness(service.models), metrics),
        ):
            app.include_router(router)
        try:
            yield
        finally:
            await service.close()

    return lifespan


def _of_validation(problems: Sequence[Any]) -> GatewayError:
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
