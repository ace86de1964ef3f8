"""Clients of a ROSE server: synchronous, asyncio, and the command line."""

from rose_client.aio import AsyncRoseClient
from rose_client.chunking import ChunkLimits
from rose_client.client import RoseClient
from rose_client.errors import RequestError
from rose_client.reranking import RankedDocument, RerankOptions, Scores
from rose_client.retries import RetryPolicy
from rose_client.streams import EmbeddedBlock
from rose_client.wire import Embeddings, EmbedOptions, SparseVector

__all__ = [
    "AsyncRoseClient",
    "ChunkLimits",
    "EmbedOptions",
    "EmbeddedBlock",
    "Embeddings",
    "RankedDocument",
    "RequestError",
    "RerankOptions",
    "RetryPolicy",
    "RoseClient",
    "Scores",
    "SparseVector",
]
