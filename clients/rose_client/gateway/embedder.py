"""Vectors of texts, from the servers or from the cache."""

from __future__ import annotations

from collections.abc import Sequence

from rose_client.chunking import Item
from rose_client.exchange import EmbedExchange
from rose_client.gateway.cache import VectorCache, entries_of, joined, keys_of
from rose_client.gateway.context import Context
from rose_client.gateway.models import Model
from rose_client.wire import Embeddings, EmbedOptions, join_embeddings


class Embedder:
    """Asks the servers, for whatever the cache does not have.

    Args:
        cache: None: everything is asked for.
    """

    def __init__(self, cache: VectorCache | None) -> None:
        self._cache = cache

    async def embed(
        self, model: Model, items: Sequence[Item], options: EmbedOptions, context: Context, counts: Sequence[int] = ()
    ) -> Embeddings:
        """Vectors of items, as the client's `exchange` takes them; the context is told of tokens that were run.

        Chunks of documents depend on their neighbours and are not kept.

        Raises:
            RequestError: as the client's calls.
        """
        if self._cache is None or counts:
            return await self._ask(model, items, options, context, counts)
        keys = keys_of(model.name, options, items)
        found = self._cache.get(keys)
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        if missing:
            answer = await self._ask(model, list(missing.values()), options, context)
            fresh = dict(zip(missing, entries_of(answer), strict=True))
            self._cache.put(fresh)
            if len(missing) == len(items):
                return answer
            found |= fresh
        return joined([found[key] for key in keys])

    @staticmethod
    async def _ask(
        model: Model, items: Sequence[Item], options: EmbedOptions, context: Context, counts: Sequence[int] = ()
    ) -> Embeddings:
        exchange = EmbedExchange(model.name, options, context.request_id)
        answer = join_embeddings(await model.client.exchange(items, exchange, counts=counts))
        context.num_tokens += int(answer.token_counts.sum())
        return answer
