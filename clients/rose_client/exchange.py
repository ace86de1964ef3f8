"""What differs between kinds of calls: how a chunk travels, and how its answer is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from tritonclient.grpc import service_pb2

from rose_client.chunking import Chunk
from rose_client.inference import Inference
from rose_client.reranking import Scores, read_scores, score_inference
from rose_client.wire import Embeddings, EmbedOptions, embedding_inference, read_embeddings

Answer = TypeVar("Answer", covariant=True)
Options = TypeVar("Options", bound=Mapping[str, Any])

_OF_A_SPLIT_CALL = "bulk"  # its lane, also where the chunk by itself is small enough to be taken for a query


class Exchange(Protocol[Answer]):
    """One kind of call as tensors."""

    def inference(self, chunk: Chunk, seconds: float) -> Inference:
        """What is sent for a chunk, with the seconds that are left."""

    def read(self, response: service_pb2.ModelInferResponse) -> Answer:
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

    def inference(self, chunk: Chunk, seconds: float) -> Inference:
        """As `embedding_inference`."""
        parameters = _in_its_lane(self.options, chunk)
        return embedding_inference(self.model, chunk.texts, parameters, seconds, chunk.counts, self.request_id)

    def read(self, response: service_pb2.ModelInferResponse) -> Embeddings:
        """As `read_embeddings`."""
        return read_embeddings(response, self.options)


@dataclass(frozen=True)
class ScoreExchange:
    """The scoring contract; what travels in chunks are the documents.

    Attributes:
        model: name of the ensemble.
        query: goes with every chunk, in UTF-8.
        options: of the call.
        request_id: what the servers' logs call it.
    """

    model: str
    query: bytes
    options: Mapping[str, Any]
    request_id: str = ""

    def inference(self, chunk: Chunk, seconds: float) -> Inference:
        """As `score_inference`."""
        parameters = _in_its_lane(self.options, chunk)
        return score_inference(self.model, self.query, chunk.texts, parameters, seconds, self.request_id)

    def read(self, response: service_pb2.ModelInferResponse) -> Scores:
        """As `read_scores`."""
        return read_scores(response)


def _in_its_lane(options: Options, chunk: Chunk) -> Options:
    """A call's options for one of its chunks."""
    if chunk.is_part and "lane" not in options:
        return cast("Options", {**options, "lane": _OF_A_SPLIT_CALL})
    return options
