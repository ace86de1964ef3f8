"""Routes that take JSON, called without the framework, whose layers would take as long as all else together."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from rose_client.gateway.context import Context
from rose_client.gateway.errors import of_validation


@dataclass(frozen=True)
class DirectRoute:
    """A route and its parameters `body` and, if it has one, `context`; FastAPI documents it, and would do the same.

    Attributes:
        path: as documented.
        endpoint: the route.
        body: checks and builds its body.
        takes_context: whether it has that parameter.
    """

    path: str
    endpoint: Callable[..., Awaitable[Response]]
    body: TypeAdapter[Any]
    takes_context: bool

    async def __call__(self, content: bytes, context: Context) -> Response:
        """The answer to a request with this content.

        Raises:
            GatewayError: whatever the reason.
        """
        try:
            body = self.body.validate_json(content)
        except ValidationError as error:
            raise of_validation(error.errors(include_url=False, include_input=False)) from None
        if self.takes_context:
            return await self.endpoint(body=body, context=context)
        return await self.endpoint(body=body)


def direct_routes(routers: Iterable[APIRouter]) -> dict[str, DirectRoute]:
    """The POST routes, by path."""
    found = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and "POST" in (route.methods or ()):
                hints = typing.get_type_hints(route.endpoint)
                found[route.path] = DirectRoute(
                    route.path, route.endpoint, TypeAdapter(hints["body"]), "context" in hints
                )
    return found
