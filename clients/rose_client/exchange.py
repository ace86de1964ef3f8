"""What differs between kinds of calls: how a chunk travels, and how its answer is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import tritonclient.grpc as grpcclient

from rose_client.chunking import Chunk
from rose_client.reranking import RerankOptions, Scores, read_scores, score_arguments
from rose_client.wire import Embeddings, EmbedOptions, infer_arguments, read_embeddings

Answer = TypeVar("Answer", covariant=True)

_OF_A_SPLIT_CALL = "bulk"  # its lane, also where the chunk by itself is small enough to be taken for a query


class Exchange(Protocol[Answer]):
    """One kind of call as tensors."""

    def arguments(self, chunk: Chunk, seconds: float) -> dict[str, Any]:
        """Keyword arguments of tritonclient's `infer` for a chunk, with the seconds that are left."""

    def read(self, result: grpcclient.InferResult) -> Answer:
        """A chunk's answer."""


@dataclass(frozen=True)
class EmbedExchange:
    """The embedding contract.

    Attributes:
        model: name of the ensemble.
        options: of the call.
        request_id: what the servers' logs call it.
    """

    model: str
    options: EmbedOptions
    request_id: str = ""

    def arguments(self, chunk: Chunk, seconds: float) -> dict[str, Any]:
        """As `infer_arguments`."""
        options = self.options
        if chunk.is_part and "lane" not in options:
            options = {**options, "lane": _OF_A_SPLIT_CALL}
        arguments = infer_arguments(self.model, chunk.texts, options, seconds, chunk.counts)
        return {**arguments, "request_id": self.request_id}

    def read(self, result: grpcclient.InferResult) -> Embeddings:
        """As `read_embeddings`."""
        return read_embeddings(result, self.options)


@dataclass(frozen=True)
class ScoreExchange:
    """The scoring contract; what travels in chunks are the documents.

    Attributes:
        model: name of the ensemble.
        query: goes with every chunk, in UTF-8.
        options: of the call.
    """

    model: str
    query: bytes
    options: RerankOptions

    def arguments(self, chunk: Chunk, seconds: float) -> dict[str, Any]:
        """As `score_arguments`."""
        options = self.options
        if chunk.is_part and "lane" not in options:
            options = {**options, "lane": _OF_A_SPLIT_CALL}
        return score_arguments(self.model, self.query, chunk.texts, options, seconds)

    def read(self, result: grpcclient.InferResult) -> Scores:
        """As `read_scores`."""
        return read_scores(result)
