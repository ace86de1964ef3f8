"""Vectors of texts, from the servers or from the cache."""

from __future__ import annotations

from collections.abc import Sequence

from rose_client.chunking import Item
from rose_client.exchange import EmbedExchange
from rose_client.gateway.cache import VectorCache, entries_of, joined, keys_of
from rose_client.gateway.context import Context
from rose_client.gateway.merging import Merger
from rose_client.gateway.models import Model
from rose_client.wire import Embeddings, EmbedOptions, join_embeddings


class Embedder:
    """Asks the servers, for whatever the cache does not have.

    Args:
        cache: None: everything is asked for.
        merger: lets small requests travel together; None: each is a call of its own.
    """

    def __init__(self, cache: VectorCache | None, merger: Merger | None = None) -> None:
        self._cache = cache
        self._merger = merger

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

    async def _ask(
        self, model: Model, items: Sequence[Item], options: EmbedOptions, context: Context, counts: Sequence[int] = ()
    ) -> Embeddings:
        exchange = EmbedExchange(model.name, options, context.request_id)
        tokens = None if self._merger is None or counts else self._merger.takes(items, options)
        if self._merger is None or tokens is None:
            answer = join_embeddings(await model.client.exchange(items, exchange, counts=counts))
        else:
            answer = await self._merger.embed(model.client, items, tokens, exchange)
        context.num_tokens += answer.num_tokens
        return answer
