"""The routes, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from rose_client.gateway.direct import DirectRoute, direct_routes
from rose_client.gateway.errors import GatewayError, error_response, of_validation
from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.openai_routes import openai_routes
from rose_client.gateway.operations_routes import operations_routes
from rose_client.gateway.perplexity_routes import perplexity_routes
from rose_client.gateway.readiness import Readiness
from rose_client.gateway.service import Service
from rose_client.gateway.shell import Shell, describe_security
from rose_client.gateway.status import Status
from rose_client.gateway.tei_routes import tei_routes
from rose_client.gateway.tracing import GatewayTracing
from rose_client.gateway.vocabulary import Vocabularies
from rose_ensemble.tracing import open_tracing

_CODES = {404: "not_found", 405: "method_not_allowed"}
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
    direct: dict[str, DirectRoute] = {}
    opened = open_tracing("rose-gateway")
    tracing = None if opened is None else GatewayTracing(opened)
    routes = FastAPI(
        title="ROSE gateway",
        version=version("rose-on-triton"),
        description="Embeddings and reranking by the routes of OpenAI, Perplexity, Cohere, Jina and "
        "text-embeddings-inference.",
        lifespan=_lifespan(config, metrics, direct, tracing),
        responses=_ERRORS,
        redoc_url=None,
    )

    @routes.exception_handler(GatewayError)
    async def refused(request: Request, error: GatewayError) -> Response:
        return error_response(request.url.path, error)

    @routes.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return error_response(request.url.path, of_validation(error.errors()))

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
    return Shell(routes, direct, config, metrics, tracing)


def _lifespan(
    config: GatewayConfig, metrics: GatewayMetrics, direct: dict[str, DirectRoute], tracing: GatewayTracing | None
) -> Any:
    """Connections belong to the running event loop, so they are made, and the routes with them, when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(config, metrics)
        routers = (
            openai_routes(service),
            perplexity_routes(service),
            cohere_routes(service),
            tei_routes(service, Vocabularies(service.models)),
            operations_routes(Readiness(service.models), metrics, Status(service.models, metrics, config.metrics_urls)),
        )
        for router in routers:
            app.include_router(router)
        direct.update(direct_routes(routers))
        try:
            yield
        finally:
            await service.close()
            metrics.count()
            if tracing is not None:
                tracing.close()

    return lifespan
