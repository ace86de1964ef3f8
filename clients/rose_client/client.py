"""The synchronous client, over gRPC."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2_grpc
from typing_extensions import Unpack

from rose_client.chunking import DEFAULT_LIMITS, ChunkLimits, Item, estimate_tokens
from rose_client.dispatch import Answer, Call, Dispatcher
from rose_client.errors import RequestError
from rose_client.exchange import EmbedExchange, Exchange, ScoreExchange
from rose_client.flight import Flight
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
from rose_client.streams import Block, EmbeddedBlock, blocks_of, refuse_single
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


class RoseClient:
    """Embeds or reranks texts on one or several ROSE servers. Use as a context manager, or call `close`.

    A call's texts go out in chunks, each to the server with the least outstanding tokens (estimated from bytes: see
    `chunking`), and their vectors come back in the order of the texts. A call that fits one chunk is one request.

    Args:
        urls: `host:port` of a server's gRPC endpoint, or of several servers with the same models.
        model: name of the ensemble.
        timeout: seconds a whole call may take, retries included.
        limits: of one chunk.
        max_in_flight: most chunks of one call that are at a server together; more than one keep its replicas busy.
        retries: when a failed chunk is sent again.

    Raises:
        ValueError: no url, or a timeout or limit that is not positive.
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
        self._channels = [grpc.insecure_channel(url, options=CHANNEL_ARGUMENTS) for url in servers]
        self._infer = [service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer for channel in self._channels]
        self._model = model

    def embed(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> npt.NDArray[np.float32]:
        """Vectors of the texts, `[num_texts, dim]` float32. Errors as for `embed_with_counts`."""
        return self.embed_with_counts(texts, **options).vectors

    def embed_with_counts(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Embed texts; `EmbedOptions` says what may be asked.

        Raises:
            RequestError: a server refused or failed, or the call's time was over. What was not yet sent never is;
                requests under way are cancelled, which a server may notice late.
            ValueError: no texts.
            TypeError: something that is not a string.
        """
        exchange = EmbedExchange(self._model, options)
        return join_embeddings(self._exchange(encode_texts(texts), exchange))

    def embed_many(
        self,
        texts: Iterable[str],
        *,
        progress: bool = False,
        total: int | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Generator[EmbeddedBlock, None, None]:
        """Embed any number of texts, in blocks of one request each, which come in the order of the texts.

        As many blocks are under way as servers hold chunks of a call (`max_in_flight` each), and no more are kept:
        memory does not grow with the input, which is read as blocks leave.

        Args:
            texts: any iterable, such as the lines of a file.
            progress: show a bar on the standard error.
            total: how many texts there are, for the bar, where `len(texts)` does not say.
            options: see `EmbedOptions`.

        Yields:
            Blocks; `for text, vector in zip(block.texts, block.embeddings.vectors)` goes on from there.

        Raises:
            RequestError: as for `embed_with_counts`, told of the block's texts; the client's `timeout` is that of
                each block, and stands still while the caller does something with the last one.
            TypeError: something that is not a string.
        """
        refuse_single(texts)
        exchange = EmbedExchange(self._model, options)
        blocks = blocks_of(texts, self._dispatcher.limits)
        return self._stream(blocks, exchange, known_total(texts, total), progress=progress)

    def similarity(
        self, texts: Sequence[str], others: Sequence[str] | None = None, **options: Unpack[EmbedOptions]
    ) -> npt.NDArray[np.float32]:
        """Cosines of texts, all of them embedded alike.

        Args:
            texts: those of the rows.
            others: those of the columns; None: the same ones.
            options: see `EmbedOptions`; `normalize` and `outputs` are not for the caller to choose.

        Returns:
            `[num_texts, num_others]` float32.

        Raises:
            RequestError, TypeError: as for `embed_with_counts`.
            ValueError: no texts, no others, or one of those two options.
        """
        asked = similarity_options(options)
        rows, columns = encode_texts(texts), [] if others is None else encode_texts(others, "others")
        vectors = join_embeddings(self._exchange(rows + columns, EmbedExchange(self._model, asked))).vectors
        return vectors[: len(rows)] @ vectors[len(rows) if columns else 0 :].T

    def score(self, query: str, documents: Sequence[str], **options: Unpack[RerankOptions]) -> Scores:
        """Score documents by how well they answer a query; the model must be a reranker.

        Args:
            query: one text, possibly empty.
            documents: the texts to be scored.
            options: see `RerankOptions`.

        Raises:
            RequestError: as for `embed_with_counts`.
            ValueError: no documents.
            TypeError: something that is not a string.
        """
        exchange = ScoreExchange(self._model, encode_query(query), options)
        beside = estimate_tokens(exchange.query)
        return join_scores(self._exchange(encode_texts(documents, "documents"), exchange, beside))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        top_n: int | None = None,
        instruction: str | None = None,
        raw_scores: bool = False,
        **options: Unpack[TruncationOptions],
    ) -> list[RankedDocument]:
        """Documents in the order of their logits, best first; equal ones stay in their own order.

        Args:
            query: one text.
            documents: the texts to be ranked.
            top_n: how many of them are wanted; None, or more than there are: all.
            instruction: what counts as relevant, for rerankers that are told so; None: the checkpoint's own.
            raw_scores: scores that are the logits.
            options: others of `RerankOptions`.

        Raises:
            RequestError: as for `embed_with_counts`.
            ValueError: no documents, or `top_n` is below 1.
            TypeError: something that is not a string.
        """
        check_top_n(top_n)
        asked = rerank_options(instruction, options, raw_scores=raw_scores)
        return ranked(self.score(query, documents, **asked), top_n)

    def contextual(self, documents: Sequence[Sequence[str]], **options: Unpack[EmbedOptions]) -> list[Embeddings]:
        """Embed documents in chunks: a vector a chunk, made in sight of its whole document.

        For checkpoints that are trained for it (pplx-embed-context), and with `late_chunking` for others that pool
        the mean of all tokens. A document is never cut: one that is too long is refused.

        Returns:
            An `Embeddings` for each document, its rows in the order of the chunks.

        Raises:
            ValueError: no documents, or one without chunks.
            RequestError, TypeError: as for `embed_with_counts`.
        """
        texts, counts = encode_documents(documents)
        exchange = EmbedExchange(self._model, options)
        return part_embeddings(join_embeddings(self._exchange(texts, exchange, counts=counts)), counts)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> RoseClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(
        self, items: Sequence[Item], exchange: Exchange[Answer], beside: int = 0, counts: Sequence[int] = ()
    ) -> list[Answer]:
        """Send items in chunks; the answers of the chunks, in the order of the items."""
        call: Call[Answer] = self._dispatcher.call(items, time.monotonic(), beside, counts)
        try:
            if call.is_single:
                self._run_single(call, exchange)
            else:
                self._run_chunks(call, exchange)
        finally:
            call.close()
        return call.answers()

    def _stream(
        self, blocks: Iterator[Block], exchange: EmbedExchange, total: int | None, *, progress: bool
    ) -> Generator[EmbeddedBlock, None, None]:
        """Blocks with their answers, the foremost first; each is a call of one chunk."""
        most = self._dispatcher.max_in_flight * len(self._channels)
        waiting: deque[tuple[Block, Call[Embeddings]]] = deque()
        with progress_bar(total, shown=progress) as advance, Flight(self._infer, exchange) as flight:
            try:
                while True:
                    while len(waiting) < most and (block := next(blocks, None)) is not None:
                        begun: Call[Embeddings] = self._dispatcher.call(
                            block.items, time.monotonic(), first=block.first
                        )
                        waiting.append((block, begun))
                        flight.send(begun)  # before the next block is read, which may take a while
                    if not waiting:
                        return
                    block, call = waiting[0]
                    while not call.is_finished:
                        running = [other for _, other in waiting if not other.is_finished]
                        for other in running:
                            flight.send(other)
                        flight.settle(min(other.pause(time.monotonic()) for other in running))
                    waiting.popleft()
                    advance(len(block.texts))
                    left = time.monotonic()
                    yield EmbeddedBlock(block.first, block.texts, join_embeddings(call.answers()))
                    for _, other in waiting:
                        other.extend(time.monotonic() - left)
                    flight.settle_ended()
            finally:
                for _, call in waiting:
                    call.close()

    def _run_single(self, call: Call[Answer], exchange: Exchange[Answer]) -> None:
        while True:
            for attempt in call.ready(time.monotonic()):
                sent = exchange.inference(attempt.chunk, attempt.seconds)
                infer = self._infer[attempt.server]
                outcome: Answer | RequestError
                try:
                    outcome = exchange.read(infer(sent.request, timeout=sent.seconds, metadata=sent.metadata))
                except grpc.RpcError as cause:
                    outcome = RequestError.of_call(cause)
                except RequestError as failure:
                    outcome = failure
                call.settle(attempt, outcome, time.monotonic())
            if call.is_finished:
                return
            time.sleep(call.pause(time.monotonic()))

    def _run_chunks(self, call: Call[Answer], exchange: Exchange[Answer]) -> None:
        with Flight(self._infer, exchange) as flight:
            while not call.is_finished:
                flight.send(call)
                flight.settle(call.pause(time.monotonic()))
