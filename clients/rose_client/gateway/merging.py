"""Small requests that would wait anyway travel together: one call of several texts, parted when it is answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rose_client.aio import AsyncRoseClient
from rose_client.chunking import Item, estimate_tokens
from rose_client.dispatch import expired
from rose_client.errors import RequestError
from rose_client.exchange import EmbedExchange
from rose_client.retries import is_dead_stub
from rose_client.wire import Embeddings, EmbedOptions, join_embeddings

# What one text may bring on all that travel with it; anything else would have met each of them alone just the same.
_OF_ONE_TEXT = frozenset({"INVALID_ARGUMENT", "INTERNAL", "UNKNOWN"})


@dataclass(frozen=True)
class MergePolicy:
    """Which requests travel together, how many, and how long they may wait for others.

    Tokens are counted as `estimate_tokens` does.

    Attributes:
        calls_per_server: calls with equal options that are under way before the next request waits for others.
        longest_wait: seconds after which it leaves although none of those is answered, or after half of what the
            latest one took, if that is less: where servers are quick, so is it.
        max_texts: most texts of a call; one that is full leaves at once.
        max_tokens: most tokens of a call.
        max_request_texts: a request of more travels alone; at most 32, what is online work by its size.
        max_request_tokens: a request of more travels alone.
    """

    calls_per_server: int = 2
    longest_wait: float = 0.025
    max_texts: int = 64
    max_tokens: int = 4096
    max_request_texts: int = 8
    max_request_tokens: int = 512

    def __post_init__(self) -> None:
        for name in ("calls_per_server", "max_request_texts", "max_request_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        if not 0 < self.longest_wait < math.inf:
            raise ValueError(f"longest_wait is {self.longest_wait}: give a positive, finite number of seconds")
        if self.max_request_texts > min(32, self.max_texts):
            raise ValueError(f"max_request_texts is {self.max_request_texts}: give at most 32 and max_texts")
        if self.max_request_tokens > self.max_tokens:
            raise ValueError(f"max_request_tokens is {self.max_request_tokens}: give at most max_tokens")


class MergeWatch(Protocol):
    """Counts calls."""

    def call_sent(self, num_requests: int) -> None:
        """A call of so many small requests went out."""

    def call_parted(self) -> None:
        """A call was refused for what may be one request's fault, and each of its requests sent alone."""


@dataclass(eq=False)
class _Member:
    """A request that waits or travels with others.

    Attributes:
        items: its texts or token ids.
        tokens: their estimated number of tokens.
        request_id: what the servers' logs would call it.
        began: when it came.
        answer: its part of a call's answer; None: it has to be sent alone.
        call: that it travels in, once it has left.
    """

    items: Sequence[Item]
    tokens: int
    request_id: str
    began: float
    answer: asyncio.Future[Embeddings | None]
    call: _MergedCall | None = None


class Merger:
    """Sends small requests, those with equal options together while enough calls are under way. For one event loop.

    A lone request leaves at once. A request that waits or travels with others keeps its own deadline, and its sender
    may go away without the others noticing.

    Args:
        policy: which and how many.
        num_servers: that share the work.
        timeout: seconds a request may take, as its client has it.
        watch: told of every call.
    """

    def __init__(self, policy: MergePolicy, num_servers: int, timeout: float, watch: MergeWatch) -> None:
        self.policy = policy
        self.most_calls = policy.calls_per_server * num_servers
        self.timeout = timeout
        self.watch = watch
        self._queues: dict[Hashable, _Queue] = {}  # only those that have something under way: senders make up prompts

    def takes(self, items: Sequence[Item], options: EmbedOptions) -> int | None:
        """Estimated tokens of a request that is small enough to travel with others; None of any other."""
        policy = self.policy
        if len(items) > policy.max_request_texts:
            return None
        beside = estimate_tokens(options["prompt"].encode()) if "prompt" in options else 0
        tokens = sum(map(estimate_tokens, items)) + beside * len(items)
        return tokens if tokens <= policy.max_request_tokens else None

    async def embed(
        self, client: AsyncRoseClient, items: Sequence[Item], tokens: int, exchange: EmbedExchange
    ) -> Embeddings:
        """Vectors of a small request, alone or together with others.

        Args:
            client: of its model.
            items: its texts or token ids.
            tokens: what `takes` gave.
            exchange: its own.

        Raises:
            RequestError: as the client's calls.
        """
        key = (client, exchange.model, isinstance(items[0], bytes), _hashable(exchange.options))
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self, client, exchange, lambda: self._queues.pop(key))
        return await queue.embed(items, tokens, exchange)


class _Queue:
    """Requests that may travel together, as their model and options are equal."""

    def __init__(
        self, merger: Merger, client: AsyncRoseClient, exchange: EmbedExchange, forget: Callable[[], Any]
    ) -> None:
        self._client = client
        self._exchange = exchange  # any of theirs
        self._forget = forget
        self._merger = merger
        self._running = 0  # calls
        self._latest = math.inf  # seconds that the latest one took
        self._waiting: list[_Member] = []
        self._num_texts = self._num_tokens = 0  # of those that wait
        self._timer: asyncio.Handle | None = None
        self._calls: set[_MergedCall] = set()

    async def embed(self, items: Sequence[Item], tokens: int, exchange: EmbedExchange) -> Embeddings:
        began = time.monotonic()
        if not self._running:
            self._running = 1
            self._merger.watch.call_sent(1)
            try:
                return await self._alone(items, exchange, began)
            finally:
                self._ended(began)
        member = _Member(items, tokens, exchange.request_id, began, asyncio.get_running_loop().create_future())
        self._add(member)
        try:
            answer = await member.answer
        except asyncio.CancelledError:
            self._leave(member)
            raise
        return await self._alone(items, exchange, began) if answer is None else answer

    def _ended(self, began: float) -> None:
        """A call is over, and the next may leave."""
        self._running -= 1
        self._latest = time.monotonic() - began
        if self._waiting and self._running < self._merger.most_calls:
            self._send()
        if not self._running:
            self._forget()

    def _ended_together(self, call: _MergedCall, began: float) -> None:
        self._calls.remove(call)
        call.close()
        self._ended(began)

    def _add(self, member: _Member) -> None:
        policy, count = self._merger.policy, len(member.items)
        if self._num_texts + count > policy.max_texts or self._num_tokens + member.tokens > policy.max_tokens:
            self._send()
        self._waiting.append(member)
        self._num_texts += count
        self._num_tokens += member.tokens
        if self._num_texts == policy.max_texts or self._num_tokens == policy.max_tokens:
            self._send()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            if self._running < self._merger.most_calls:
                self._timer = loop.call_soon(self._send)  # with whatever else came in this round of the event loop
            else:
                self._timer = loop.call_later(min(policy.longest_wait, self._latest / 2), self._send)

    def _send(self) -> None:
        """Let all who wait leave, in one call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        members, self._waiting = self._waiting, []
        self._num_texts = self._num_tokens = 0
        if not members:
            return
        self._running += 1
        self._merger.watch.call_sent(len(members))
        call = _MergedCall(members, self._merger.timeout)
        self._calls.add(call)  # an event loop holds its tasks by weak references alone
        call.start(self._client, self._exchange, self._merger.watch)
        began = time.monotonic()
        call.task.add_done_callback(lambda _: self._ended_together(call, began))

    def _leave(self, member: _Member) -> None:
        """Its sender has gone."""
        if not member.answer.cancelled():  # it was answered just now
            member.answer.exception()  # which counts as read
        elif member.call is not None:
            member.call.left()
        elif member in self._waiting:
            self._waiting.remove(member)
            self._num_texts -= len(member.items)
            self._num_tokens -= member.tokens

    async def _alone(self, items: Sequence[Item], exchange: EmbedExchange, began: float) -> Embeddings:
        return join_embeddings(await self._client.exchange(items, exchange, began=began))


class _MergedCall:
    """Requests under way together."""

    task: asyncio.Task[None]

    def __init__(self, members: Sequence[_Member], timeout: float) -> None:
        self._members = members
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        for member in members:
            member.call = self

    def start(self, client: AsyncRoseClient, any_exchange: EmbedExchange, watch: MergeWatch) -> None:
        """Send them. What each is by its size, online work, all together are too, which the server is told."""
        options, request_id = any_exchange.options, self._members[0].request_id
        if len(self._members) > 1:
            options = {"lane": "online", **options}
            request_id = f"{request_id}+{len(self._members) - 1}"
        exchange = EmbedExchange(any_exchange.model, options, request_id)
        self.task = asyncio.ensure_future(self._run(client, exchange, watch))
        self._expire()

    def close(self) -> None:
        """The call is over."""
        if self._timer is not None:
            self._timer.cancel()

    def left(self) -> None:
        """A sender has gone; nobody may be left."""
        if all(member.answer.done() for member in self._members):
            self.task.cancel()

    async def _run(self, client: AsyncRoseClient, exchange: EmbedExchange, watch: MergeWatch) -> None:
        items = [item for member in self._members for item in member.items]
        try:
            # The latest deadline; whose is earlier is told of it in time.
            answer = join_embeddings(await client.exchange(items, exchange, began=self._members[-1].began))
            self._part(answer)
        except RequestError as failure:
            self._fail(failure, watch)
        except Exception as fault:  # noqa: BLE001 - handed to every member, none of which may wait for ever
            for member in self._unanswered():
                member.answer.set_exception(fault)

    def _part(self, answer: Embeddings) -> None:
        first = 0
        for member in self._members:
            stop = first + len(member.items)
            if not member.answer.done():
                rows = {name: values[first:stop] for name, values in answer.arrays.items()}
                member.answer.set_result(Embeddings(rows, answer.token_counts[first:stop]))
            first = stop

    def _fail(self, failure: RequestError, watch: MergeWatch) -> None:
        if failure.status == "DEADLINE_EXCEEDED":
            for member in self._unanswered():
                member.answer.set_exception(expired(0, len(member.items), self._timeout))
        elif len(self._members) > 1 and failure.status in _OF_ONE_TEXT and not is_dead_stub(failure):
            watch.call_parted()
            for member in self._unanswered():
                member.answer.set_result(None)
        else:
            for member in self._unanswered():
                member.answer.set_exception(RequestError(failure.status, failure.message))

    def _unanswered(self) -> list[_Member]:
        return [member for member in self._members if not member.answer.done()]

    def _expire(self) -> None:
        """Tell those whose time is over, and come back when the next one's will be."""
        self._timer = None
        now = time.monotonic()
        for member in self._members:  # in the order of their deadlines
            if member.answer.done():
                continue
            left = member.began + self._timeout - now
            if left > 0:
                self._timer = asyncio.get_running_loop().call_later(left, self._expire)
                return
            member.answer.set_exception(expired(0, len(member.items), self._timeout))
        self.task.cancel()


def _hashable(options: EmbedOptions) -> Hashable:
    if not options:
        return ()
    pairs: list[tuple[str, Any]] = sorted(options.items())
    return tuple((name, tuple(value) if isinstance(value, list | tuple) else value) for name, value in pairs)
