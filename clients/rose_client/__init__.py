"""Clients of a ROSE server: synchronous, asyncio, and the command line."""

from rose_client.aio import AsyncRoseClient
from rose_client.client import RoseClient
from rose_client.errors import RequestError
from rose_client.wire import Embeddings, EmbedOptions

__all__ = ["AsyncRoseClient", "EmbedOptions", "Embeddings", "RequestError", "RoseClient"]
