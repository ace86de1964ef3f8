"""Health, metrics and the status page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.readiness import Readiness
from rose_client.gateway.replies import json_response
from rose_client.gateway.status import Status

# Scripts and styles of the page alone, and nowhere to send anything but here.
_PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


def operations_routes(readiness: Readiness, metrics: GatewayMetrics, status: Status) -> APIRouter:
    """What orchestrators and monitoring ask for."""
    router = APIRouter(tags=["operations"])

    @router.get("/health/live", response_model=dict[str, str])
    async def live() -> Response:
        """Say that the gateway's process answers; servers are not asked."""
        return json_response({"status": "live"})

    @router.get("/health", response_model=dict[str, str])
    @router.get("/health/ready", response_model=dict[str, str])
    @router.get("/ping", response_model=dict[str, str], include_in_schema=False)
    async def ready() -> Response:
        """Have every model embed a tiny text; 503 if one does not answer."""
        return json_response(dict(await readiness.check()))

    @router.get("/metrics", response_class=Response)
    async def page() -> Response:
        """Show the gateway's own counters, for Prometheus."""
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    html = (files("rose_client.gateway") / "status.html").read_bytes()

    @router.get("/status", response_class=Response, include_in_schema=False)
    async def status_page() -> Response:
        """Show models, queues and throughput in a browser."""
        return Response(html, media_type="text/html", headers={"content-security-policy": _PAGE_POLICY})

    @router.get("/status.json", response_model=dict[str, Any])
    async def status_data() -> Response:
        """Give what the status page shows."""
        return json_response(await status.collect())

    return router
