"""The asyncio client, over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException
from typing_extensions import Unpack

from rose_client.chunking import DEFAULT_LIMITS, ChunkLimits
from rose_client.dispatch import Attempt, Call, Dispatcher
from rose_client.errors import RequestError
from rose_client.retries import DEFAULT_RETRIES, RetryPolicy
from rose_client.wire import (
    CHANNEL_ARGUMENTS,
    Embeddings,
    EmbedOptions,
    encode_documents,
    encode_texts,
    infer_arguments,
    join_embeddings,
    part_embeddings,
    read_embeddings,
    server_urls,
)


class AsyncRoseClient:
    """Embeds texts on one or several ROSE servers from asyncio. Use as an async context manager, or await `close`.

    Chunks, balancing and retries are `RoseClient`'s, and so are the arguments and errors.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = "localhost:8001",
        model: str = "embed",
        timeout: float = 60.0,
        *,
        limits: ChunkLimits = DEFAULT_LIMITS,
        max_in_flight: int = 4,
        retries: RetryPolicy = DEFAULT_RETRIES,
    ) -> None:
        servers = server_urls(urls)
        self._dispatcher = Dispatcher(len(servers), timeout, limits, max_in_flight, retries)
        self._clients = [grpcclient.InferenceServerClient(url, channel_args=CHANNEL_ARGUMENTS) for url in servers]
        self._model = model

    async def embed(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> npt.NDArray[np.float32]:
        """Vectors of the texts, `[num_texts, dim]` float32; as `RoseClient.embed`."""
        return (await self.embed_with_counts(texts, **options)).vectors

    async def embed_with_counts(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """As `RoseClient.embed_with_counts`. A cancelled task cancels its requests."""
        call = self._dispatcher.call(encode_texts(texts), time.monotonic())
        return await self._run(call, options)

    async def contextual(self, documents: Sequence[Sequence[str]], **options: Unpack[EmbedOptions]) -> list[Embeddings]:
        """As `RoseClient.contextual`."""
        texts, counts = encode_documents(documents)
        call = self._dispatcher.call_documents(texts, counts, time.monotonic())
        return part_embeddings(await self._run(call, options), counts)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()

    async def __aenter__(self) -> AsyncRoseClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call, options: EmbedOptions) -> Embeddings:
        try:
            if call.is_single:
                await self._run_single(call, options)
            else:
                await self._run_chunks(call, options)
        finally:
            call.close()
        return join_embeddings(call.answers())

    async def _run_single(self, call: Call, options: EmbedOptions) -> None:
        while True:
            for attempt in call.ready(time.monotonic()):
                call.settle(attempt, await self._send(attempt, options), time.monotonic())
            if call.is_finished:
                return
            await asyncio.sleep(call.pause(time.monotonic()))

    async def _run_chunks(self, call: Call, options: EmbedOptions) -> None:
        running: dict[asyncio.Task[Embeddings | RequestError], Attempt] = {}
        try:
            while not call.is_finished:
                for attempt in call.ready(time.monotonic()):
                    running[asyncio.create_task(self._send(attempt, options))] = attempt
                pause = call.pause(time.monotonic())
                if not running:
                    await asyncio.sleep(pause)
                    continue
                ended, _ = await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    call.settle(running.pop(task), task.result(), time.monotonic())
        finally:
            for task in running:
                task.cancel()

    async def _send(self, attempt: Attempt, options: EmbedOptions) -> Embeddings | RequestError:
        arguments = infer_arguments(self._model, attempt.chunk.texts, options, attempt.seconds, attempt.chunk.counts)
        try:
            return read_embeddings(await self._clients[attempt.server].infer(**arguments), options)
        except InferenceServerException as cause:
            return RequestError.of(cause)
