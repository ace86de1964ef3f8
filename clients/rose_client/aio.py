"""The asyncio client, over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from types import TracebackType

import grpc.aio
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2_grpc
from typing_extensions import Unpack

from rose_client.chunking import DEFAULT_LIMITS, ChunkLimits, Item, estimate_tokens
from rose_client.dispatch import Answer, Attempt, Call, Dispatcher
from rose_client.errors import RequestError
from rose_client.exchange import EmbedExchange, Exchange, ScoreExchange
from rose_client.hedging import Hedger
from rose_client.progress import known_total, progress_bar
from rose_client.reranking import (
    RankedDocument,
    RerankOptions,
    Scores,
    TruncationOptions,
    check_top_n,
    encode_query,
    join_scores,
    ranked,
    rerank_options,
)
from rose_client.retries import DEFAULT_RETRIES, RetryPolicy
from rose_client.streams import Block, BlockFiller, EmbeddedBlock, blocks_of, refuse_single
from rose_client.wire import (
    CHANNEL_ARGUMENTS,
    Embeddings,
    EmbedOptions,
    encode_documents,
    encode_texts,
    join_embeddings,
    part_embeddings,
    server_urls,
    similarity_options,
)


class AsyncRoseClient:
    """Embeds or reranks texts on ROSE servers from asyncio. Use as an async context manager, or await `close`.

    Chunks, balancing and retries are `RoseClient`'s, and so are the arguments and errors.

    Args:
        hedger: decides which slow chunks go out a second time, where there are several servers or engines.
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
        hedger: Hedger | None = None,
    ) -> None:
        servers = server_urls(urls)
        self._dispatcher = Dispatcher(len(servers), timeout, limits, max_in_flight, retries, hedger)
        self._channels = [grpc.aio.insecure_channel(url, options=CHANNEL_ARGUMENTS) for url in servers]
        self._infer = [service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer for channel in self._channels]
        self._model = model

    async def embed(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> npt.NDArray[np.float32]:
        """Vectors of the texts, `[num_texts, dim]` float32; as `RoseClient.embed`."""
        return (await self.embed_with_counts(texts, **options)).vectors

    async def embed_with_counts(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """As `RoseClient.embed_with_counts`. A cancelled task cancels its requests."""
        exchange = EmbedExchange(self._model, options)
        return join_embeddings(await self.exchange(encode_texts(texts), exchange))

    async def embed_many(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        progress: bool = False,
        total: int | None = None,
        **options: Unpack[EmbedOptions],
    ) -> AsyncGenerator[EmbeddedBlock, None]:
        """As `RoseClient.embed_many`, of texts that may come from an asynchronous iterable.

        Whoever leaves the loop before its end wraps the iterator in `contextlib.aclosing`, so that what is under way
        is cancelled at once.
        """
        refuse_single(texts)
        exchange = EmbedExchange(self._model, options)
        blocks = aiter(self._blocks(texts))
        most = self._dispatcher.max_in_flight * len(self._channels)
        waiting: deque[tuple[Block, asyncio.Task[list[Embeddings]]]] = deque()
        with progress_bar(known_total(texts, total), shown=progress) as advance:
            try:
                while True:
                    while len(waiting) < most and (block := await anext(blocks, None)) is not None:
                        answer = self.exchange(block.items, exchange, first=block.first)
                        waiting.append((block, asyncio.create_task(answer)))
                    if not waiting:
                        return
                    block, task = waiting[0]
                    embeddings = join_embeddings(await task)
                    waiting.popleft()
                    advance(len(block.texts))
                    yield EmbeddedBlock(block.first, block.texts, embeddings)
            finally:
                for _, task in waiting:
                    task.cancel()
                await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)

    async def similarity(
        self, texts: Sequence[str], others: Sequence[str] | None = None, **options: Unpack[EmbedOptions]
    ) -> npt.NDArray[np.float32]:
        """As `RoseClient.similarity`."""
        asked = similarity_options(options)
        rows, columns = encode_texts(texts), [] if others is None else encode_texts(others, "others")
        vectors = join_embeddings(await self.exchange(rows + columns, EmbedExchange(self._model, asked))).vectors
        return vectors[: len(rows)] @ vectors[len(rows) if columns else 0 :].T

    async def score(self, query: str, documents: Sequence[str], **options: Unpack[RerankOptions]) -> Scores:
        """As `RoseClient.score`. A cancelled task cancels its requests."""
        exchange = ScoreExchange(self._model, encode_query(query), options)
        beside = estimate_tokens(exchange.query)
        return join_scores(await self.exchange(encode_texts(documents, "documents"), exchange, beside))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        top_n: int | None = None,
        instruction: str | None = None,
        raw_scores: bool = False,
        **options: Unpack[TruncationOptions],
    ) -> list[RankedDocument]:
        """As `RoseClient.rerank`."""
        check_top_n(top_n)
        asked = rerank_options(instruction, options, raw_scores=raw_scores)
        return ranked(await self.score(query, documents, **asked), top_n)

    async def embed_tokens(self, sequences: Sequence[Sequence[int]], **options: Unpack[EmbedOptions]) -> Embeddings:
        """As `embed_with_counts`, of token ids, which are used as they are: nothing is added, nothing cut.

        Raises:
            RequestError: as there.
            ValueError: no sequences.
            OverflowError: an id does not fit 32 bits.
        """
        if len(sequences) == 0:
            raise ValueError("sequences is empty: a request needs at least one")
        items = [np.array(sequence, np.int32) for sequence in sequences]
        return join_embeddings(await self.exchange(items, EmbedExchange(self._model, options)))

    async def contextual(self, documents: Sequence[Sequence[str]], **options: Unpack[EmbedOptions]) -> list[Embeddings]:
        """As `RoseClient.contextual`."""
        texts, counts = encode_documents(documents)
        exchange = EmbedExchange(self._model, options)
        return part_embeddings(join_embeddings(await self.exchange(texts, exchange, counts=counts)), counts)

    async def exchange(
        self,
        items: Sequence[Item],
        exchange: Exchange[Answer],
        beside: int = 0,
        counts: Sequence[int] = (),
        first: int | None = None,
        began: float | None = None,
    ) -> list[Answer]:
        """Send items in chunks; the answers of the chunks, in the order of the items.

        Args:
            items: texts or token ids.
            exchange: how they travel and their answers are read.
            beside: tokens that are run with each item, besides its own.
            counts: how many of the items form each document; empty: each is on its own.
            first: index of the first item in the larger input they are of, which errors are told of.
            began: when the call's time began to run, on `time.monotonic`; None: now.

        Raises:
            RequestError: as for `RoseClient.embed_with_counts`.
        """
        call: Call[Answer] = self._dispatcher.call(
            items, time.monotonic() if began is None else began, beside, counts, first
        )
        try:
            if call.is_single and self._dispatcher.hedger is None:
                await self._run_single(call, exchange)
            else:
                await self._run_chunks(call, exchange)
        finally:
            call.close()
        return call.answers()

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> AsyncRoseClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _blocks(self, texts: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[Block]:
        limits = self._dispatcher.limits
        if not isinstance(texts, AsyncIterable):
            for block in blocks_of(texts, limits):
                yield block
            return
        filler = BlockFiller(limits)
        async for text in texts:
            filled = filler.add(text)
            if filled is not None:
                yield filled
        last = filler.rest()
        if last is not None:
            yield last

    async def _run_single(self, call: Call[Answer], exchange: Exchange[Answer]) -> None:
        while True:
            for attempt in call.ready(time.monotonic()):
                call.settle(attempt, await self._send(attempt, exchange), time.monotonic())
            if call.is_finished:
                return
            await asyncio.sleep(call.pause(time.monotonic()))

    async def _run_chunks(self, call: Call[Answer], exchange: Exchange[Answer]) -> None:
        running: dict[asyncio.Task[Answer | RequestError], Attempt] = {}
        try:
            while not call.is_finished:
                for attempt in call.ready(time.monotonic()):
                    running[asyncio.create_task(self._send(attempt, exchange))] = attempt
                pause = call.pause(time.monotonic())
                if not running:
                    await asyncio.sleep(pause)
                    continue
                ended, _ = await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    call.settle(running.pop(task), task.result(), time.monotonic())
                lost = call.losers(time.monotonic())
                for task in [task for task, attempt in running.items() if attempt in lost]:
                    del running[task]
                    task.cancel()
        finally:
            for task in running:
                task.cancel()

    async def _send(self, attempt: Attempt, exchange: Exchange[Answer]) -> Answer | RequestError:
        call = exchange.inference(attempt.chunk, attempt.seconds)
        infer = self._infer[attempt.server]
        try:
            return exchange.read(await infer(call.request, timeout=call.seconds, metadata=call.metadata))
        except grpc.aio.AioRpcError as cause:
            return RequestError.of_call(cause)
        except RequestError as failure:
            return failure
