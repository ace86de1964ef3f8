"""What the status page shows: models, what came of requests, and what the servers' own metrics say."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.models import Models

_SECONDS = 2.0  # for a server's page
_ROUTE_SAMPLES = {
    "rose_gateway_requests_total": "requests",
    "rose_gateway_request_seconds_sum": "seconds",
    "rose_gateway_tokens_total": "tokens",
}
_SERVER_SAMPLES = {
    "rose_queued_requests": "queued_requests",
    "rose_queued_tokens": "queued_tokens",
    "rose_requests_total": "requests",
    "rose_request_seconds_sum": "seconds",
    "rose_tokens_total": "tokens",
    "rose_graph_replays_total": "graph_replays",
    "rose_graph_eager_total": "graph_eager",
}


class Status:
    """Collects them.

    Args:
        models: of the gateway.
        metrics: of the gateway.
        metrics_urls: `host:port` of the servers' metrics pages.
    """

    def __init__(self, models: Models, metrics: GatewayMetrics, metrics_urls: Sequence[str]) -> None:
        self._models = models
        self._metrics = metrics
        self._urls = metrics_urls

    async def collect(self) -> Mapping[str, Any]:
        """As JSON; counters are totals, from which the page makes rates.

        Raises:
            GatewayError: no server tells its models.
        """
        models = await self._models.all()
        servers = await asyncio.gather(*(asyncio.to_thread(_server, url) for url in self._urls))
        return {
            "time": time.time(),
            "models": [
                {"name": model.name, "contract": model.contract.value, "outputs": sorted(model.outputs)}
                for model in models
            ],
            "routes": _sums(self._metrics.page().decode(), _ROUTE_SAMPLES, "route"),
            "servers": servers,
        }


def _server(url: str) -> Mapping[str, Any]:
    """One server's engines, by model."""
    try:
        with urllib.request.urlopen(f"http://{url}/metrics", timeout=_SECONDS) as answer:
            text = answer.read().decode()
    except OSError as cause:
        return {"url": url, "error": str(cause), "engines": {}}
    return {"url": url, "error": None, "engines": _sums(text, _SERVER_SAMPLES, "model")}


def _sums(page: str, wanted: Mapping[str, str], label: str) -> dict[str, dict[str, float]]:
    """Sums of the wanted samples, by the label's value."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in wanted and label in sample.labels:
                sums[sample.labels[label]][wanted[sample.name]] += sample.value
    return sums
