"""The asyncio client, over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException
from typing_extensions import Unpack

from rose_client.errors import RequestError
from rose_client.wire import Embeddings, EmbedOptions, infer_arguments, read_embeddings


class AsyncRoseClient:
    """Embeds texts on a ROSE server from asyncio. Use as an async context manager, or await `close`.

    Args:
        url: `host:port` of the server's gRPC endpoint.
        model: name of the ensemble.
        timeout: seconds a call may take.
    """

    def __init__(self, url: str = "localhost:8001", model: str = "embed", timeout: float = 60.0) -> None:
        self._client = grpcclient.InferenceServerClient(url)
        self._model = model
        self._timeout = timeout

    async def embed(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> npt.NDArray[np.float32]:
        """Vectors of the texts, `[num_texts, dim]` float32; as `RoseClient.embed`."""
        return (await self.embed_with_counts(texts, **options)).vectors

    async def embed_with_counts(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """As `RoseClient.embed_with_counts`. A cancelled task cancels its request on the server."""
        arguments = infer_arguments(self._model, texts, options, self._timeout)
        try:
            return read_embeddings(await self._client.infer(**arguments))
        except InferenceServerException as cause:
            raise RequestError.of(cause) from cause

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def __aenter__(self) -> AsyncRoseClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
