"""What every route comes down to: one request model, two calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rose_client.chunking import Item
from rose_client.errors import RequestError
from rose_client.gateway.cache import VectorCache
from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.context import Context
from rose_client.gateway.embedder import Embedder
from rose_client.gateway.errors import GatewayError
from rose_client.gateway.merging import Merger
from rose_client.gateway.metrics import GatewayMetrics
from rose_client.gateway.models import Contract, Model, Models
from rose_client.gateway.scoring import Scores, scorer_of
from rose_client.wire import OUTPUT_TENSORS, Embeddings, EmbedOptions, wanted_outputs


@dataclass(frozen=True)
class EmbedRequest:
    """Texts to embed, whatever the route.

    Attributes:
        items: texts in UTF-8, or token ids.
        model: its name; None for the default.
        options: as the servers know them.
        field: what the route calls the texts, for messages.
        counts: how many of the texts form each document; empty: each is on its own.
    """

    items: Sequence[Item]
    model: str | None = None
    options: EmbedOptions = field(default_factory=EmbedOptions)
    field: str = "input"
    counts: Sequence[int] = ()


@dataclass(frozen=True)
class ScoreRequest:
    """Documents to score against a query, whatever the route.

    Attributes:
        query: in UTF-8.
        documents: in UTF-8.
        model: its name; None for the default.
        options: as the servers know them.
        field: what the route calls the documents.
    """

    query: bytes
    documents: Sequence[Item]
    model: str | None = None
    options: EmbedOptions = field(default_factory=EmbedOptions)
    field: str = "documents"


class Service:
    """Translates requests into calls of the client.

    Args:
        config: servers and limits.
        metrics: where to count what cache, hedging and merging do.
    """

    def __init__(self, config: GatewayConfig, metrics: GatewayMetrics) -> None:
        self.config = config
        self.models = Models(config, metrics)
        merging = config.merging
        self._embedder = Embedder(
            VectorCache(config.cache_bytes, metrics) if config.cache_bytes else None,
            None if merging is None else Merger(merging, len(config.urls), config.timeout, metrics),
        )

    async def embed(self, request: EmbedRequest, context: Context) -> tuple[Model, Embeddings]:
        """Vectors of a request, and the model they are from.

        Raises:
            GatewayError: whatever the reason.
        """
        model = await self.models.get(request.model)
        if model.contract is not Contract.EMBED:
            raise GatewayError.unsupported(f"model {model.name!r} scores documents and has no embeddings", "model")
        self._check_outputs(model, request.options)
        options: EmbedOptions = {**request.options, **context.trace}
        with _Told(context, request.items, request.field):
            answer = await self._embedder.embed(model, request.items, options, context, request.counts)
        return model, answer

    async def score(self, request: ScoreRequest, context: Context) -> tuple[Model, Scores]:
        """Scores of a request, and the model they are from.

        Raises:
            GatewayError: whatever the reason.
        """
        model = await self.models.get(request.model, Contract.SCORE)
        options: EmbedOptions = {**request.options, **context.trace}
        with _Told(context, [request.query, *request.documents], request.field):
            scores = await scorer_of(model, self._embedder).score(request.query, request.documents, options, context)
        return model, scores

    async def close(self) -> None:
        """Close all connections."""
        await self.models.close()

    @staticmethod
    def _check_outputs(model: Model, options: EmbedOptions) -> None:
        for name in wanted_outputs(options):
            for tensor in OUTPUT_TENSORS[name]:
                if tensor not in model.outputs:
                    lacking = _LACKING.get(name, f"it would need the output {tensor}")
                    raise GatewayError.unsupported(f"model {model.name!r} has no {name} vectors: {lacking}")


_LACKING = {
    "int8": "its checkpoint has no ranges for them, which `rose calibrate` measures",
    "sparse": "its checkpoint has no head for them",
}


class _Told:
    """Counts, takes the time, and translates errors, around the asking of servers."""

    def __init__(self, context: Context, items: Sequence[Item], field_name: str) -> None:
        context.num_characters += sum(len(item.decode()) for item in items if isinstance(item, bytes))
        self._context = context
        self._field = field_name
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.upstream_seconds += time.perf_counter() - self._began
        if isinstance(error, RequestError):
            raise GatewayError.of(error, self._field) from error
