"""How relevant documents are to a query, by whichever contract the model has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rose_client.chunking import Item
from rose_client.exchange import ScoreExchange
from rose_client.gateway.context import Context
from rose_client.gateway.embedder import Embedder
from rose_client.gateway.models import Contract, Model
from rose_client.reranking import join_scores
from rose_client.wire import EmbedOptions


@dataclass(frozen=True)
class Scores:
    """What a query's documents got.

    Attributes:
        values: `[num_documents]` float32, the higher the more relevant.
        raw: `[num_documents]` float32, before the sigmoid; the same where there is none.
        method: `cosine` or `cross-encoder`.
        num_tokens: of all pairs, or of all texts.
    """

    values: npt.NDArray[np.float32]
    raw: npt.NDArray[np.float32]
    method: str
    num_tokens: int


class Scorer(Protocol):
    """Scores documents."""

    async def score(self, query: bytes, documents: Sequence[Item], options: EmbedOptions, context: Context) -> Scores:
        """Scores in the order of the documents; the context is told of tokens that were run.

        Raises:
            RequestError: as the client's calls.
        """


def scorer_of(model: Model, embedder: Embedder) -> Scorer:
    """What fits the model's contract."""
    return _CosineScorer(model, embedder) if model.contract is Contract.EMBED else _CrossScorer(model)


@dataclass(frozen=True)
class _CosineScorer:
    """An embedding model: cosine of the query's vector and each document's, with the checkpoint's prompts for both."""

    model: Model
    embedder: Embedder

    async def score(self, query: bytes, documents: Sequence[Item], options: EmbedOptions, context: Context) -> Scores:
        async def embed(items: Sequence[Item], input_type: str) -> tuple[npt.NDArray[np.float32], int]:
            wanted: EmbedOptions = {"normalize": True, "input_type": input_type, **options}
            answer = await self.embedder.embed(self.model, items, wanted, context)
            return answer.vectors, answer.num_tokens

        asked = asyncio.ensure_future(embed([query], "query"))
        try:
            others, tokens = await embed(documents, "document")
            own, own_tokens = await asked
        finally:
            asked.cancel()
        values = others @ own[0]
        return Scores(values, values, "cosine", own_tokens + tokens)


@dataclass(frozen=True)
class _CrossScorer:
    """A model that reads query and document together."""

    model: Model

    async def score(self, query: bytes, documents: Sequence[Item], options: EmbedOptions, context: Context) -> Scores:
        exchange = ScoreExchange(self.model.name, query, options, context.request_id)
        found = join_scores(await self.model.client.exchange(documents, exchange))
        num_tokens = int(found.token_counts.sum())
        context.num_tokens += num_tokens
        return Scores(found.scores, found.logits, "cross-encoder", num_tokens)
