"""What the gateway counts, for Prometheus."""

from __future__ import annotations

import asyncio
import os
from typing import Any, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from rose_client.gateway.context import Context

_Metric = TypeVar("_Metric", Counter, Histogram)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_LATEST = 0.25  # seconds after which what was noted is counted
_MOST_NOTED = 32  # requests: counting them takes a few tenths of a millisecond
_GONE = "499"  # nginx's status for a sender that went away


class GatewayMetrics:
    """Counters of one gateway; of several workers together where `SHARED_FOLDER` names a folder.

    That variable is prometheus_client's own, which reads it when it is imported.

    What happens to requests is only noted, and counted a little later, many at once: prometheus_client takes long for
    each, and a request would wait. Use from one event loop.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # a second series for each, which nothing here reads
        self._registry = CollectorRegistry()
        self._series: dict[Any, Any] = {}
        self._num_running = 0
        self._ended: list[tuple[str, int | None, float, Context]] = []
        self._sent: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._requests = Counter(
            "rose_gateway_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "rose_gateway_request_seconds",
            "From the first byte to the answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._upstream = Histogram(
            "rose_gateway_upstream_seconds",
            "Of that, waiting for servers.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._tokens = Counter("rose_gateway_tokens", "Tokens that were run.", ("route",), registry=self._registry)
        self._running = Gauge(
            "rose_gateway_running_requests",
            "Requests under way.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._cache_hits = self._counter("rose_gateway_cache_hits", "Texts whose vectors the cache had.")
        self._cache_misses = self._counter("rose_gateway_cache_misses", "Texts whose vectors it had not.")
        self._cache_evictions = self._counter("rose_gateway_cache_evictions", "Texts that had to make room in it.")
        self._cache_size = Gauge(
            "rose_gateway_cache_bytes", "What it holds.", multiprocess_mode="livesum", registry=self._registry
        )
        self._requests_per_call = Histogram(
            "rose_gateway_requests_per_call",
            "Small requests that travelled together.",
            buckets=_REQUESTS,
            registry=self._registry,
        )
        self._calls_parted = self._counter(
            "rose_gateway_calls_parted", "Of those calls, refused for one request and sent again one by one."
        )
        self._hedges = self._counter("rose_gateway_hedges", "Slow chunks that went to another server or engine too.")
        self._hedges_won = self._counter("rose_gateway_hedges_won", "Of those, answered there first.")

    def began(self) -> None:
        """A request came."""
        self._num_running += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATEST, self.count)

    def ended(self, route: str, status: int | None, seconds: float, context: Context) -> None:
        """It was answered, or its sender went away."""
        self._num_running -= 1
        self._ended.append((route, status, seconds, context))
        if len(self._ended) >= _MOST_NOTED:
            self.count()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATEST, self.count)

    def count(self) -> None:
        """Count what was noted; done by itself in a moment, so this is for the end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._running.set(self._num_running)
        ended, self._ended = self._ended, []
        for route, status, seconds, context in ended:
            self._of(self._requests, route, _GONE if status is None else str(status)).inc()
            self._of(self._seconds, route).observe(seconds)
            if context.upstream_seconds:
                self._of(self._upstream, route).observe(context.upstream_seconds)
                self._of(self._tokens, route).inc(context.num_tokens)
        sent, self._sent = self._sent, []
        for num_requests in sent:
            self._requests_per_call.observe(num_requests)

    def cache_asked(self, hits: int, misses: int) -> None:
        """So many texts were found, and so many not."""
        self._cache_hits.inc(hits)
        self._cache_misses.inc(misses)

    def cache_changed(self, size: int, evictions: int) -> None:
        """The cache holds so many bytes now, for which so many texts had to go."""
        self._cache_size.set(size)
        self._cache_evictions.inc(evictions)

    def hedge_sent(self) -> None:
        """A slow chunk went out a second time."""
        self._hedges.inc()

    def hedge_won(self) -> None:
        """The second one was answered first."""
        self._hedges_won.inc()

    def call_sent(self, num_requests: int) -> None:
        """A call of so many small requests went out."""
        self._sent.append(num_requests)

    def call_parted(self) -> None:
        """Its requests were sent again one by one."""
        self._calls_parted.inc()

    def _of(self, metric: _Metric, *labels: str) -> _Metric:
        """Its series with these labels, which prometheus_client takes long to find."""
        key = (metric, *labels)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = metric.labels(*labels)
        return cast("_Metric", series)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self._registry)

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        self.count()
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)
