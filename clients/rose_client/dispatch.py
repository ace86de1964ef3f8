"""One call from its texts to its vectors, without any I/O: what to send where and when, and what an outcome means.

Both clients drive it alike: send what `Call.ready` names, hand every outcome to `Call.settle`, sleep no longer than
`Call.pause` says, `close` in the end; where chunks are hedged, cancel what `Call.losers` names. Times are seconds of
`time.monotonic`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rose_client.balancer import Balancer
from rose_client.chunking import Chunk, ChunkLimits, Item, as_parts, split, split_documents
from rose_client.errors import RequestError
from rose_client.hedging import Hedger
from rose_client.retries import RetryPolicy, is_absent, is_dead_stub

Answer = TypeVar("Answer")

_LONGEST_PAUSE = 1.0  # a server's avoidance ends without an event


@dataclass(frozen=True, eq=False)
class Attempt:
    """A chunk to be sent now.

    Attributes:
        index: the chunk's place in the call.
        chunk: what to send.
        server: where to.
        seconds: what is left of the call's time.
        began: when it is sent.
        is_extra: the chunk is under way elsewhere, and slow there.
    """

    index: int
    chunk: Chunk
    server: int
    seconds: float
    began: float
    is_extra: bool = False


def expired(answered: int, count: int, seconds: float) -> RequestError:
    """What a call that may take so many seconds fails with when they are over."""
    return RequestError(
        "DEADLINE_EXCEEDED", f"{answered} of {count} texts were answered in the {seconds:g} s of the call"
    )


class Dispatcher:
    """What the calls of one client share.

    Args:
        num_servers: servers are known by their index.
        timeout: seconds a whole call may take.
        limits: of one chunk.
        max_in_flight: most chunks of one call that are at a server together.
        retries: of a failed chunk.
        hedger: of a slow one; None: they are waited for.

    Raises:
        ValueError: no server, a timeout that is not a positive number, or no chunk in flight.
    """

    def __init__(
        self,
        num_servers: int,
        timeout: float,
        limits: ChunkLimits,
        max_in_flight: int,
        retries: RetryPolicy,
        hedger: Hedger | None = None,
    ) -> None:
        if num_servers < 1:
            raise ValueError("urls is empty: a client needs at least one server")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout}: a call needs a positive, finite number of seconds")
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}: a server must take at least 1 chunk")
        self.num_servers = num_servers
        self.balancer = Balancer(num_servers)
        self.timeout = timeout
        self.limits = limits
        self.max_in_flight = max_in_flight
        self.retries = retries
        self.hedger = hedger

    def call(
        self,
        texts: Sequence[Item],
        now: float,
        beside: int = 0,
        counts: Sequence[int] = (),
        first: int | None = None,
    ) -> Call[Answer]:
        """Begin a call, whose time runs from `now`, and whose chunks are answered with some type of the caller's.

        Args:
            texts: in UTF-8, or as token ids.
            now: seconds.
            beside: tokens that are run with each text, besides its own.
            counts: how many of the texts form each document; empty: each is on its own.
            first: index of the first text in the larger input they are of, which errors are told of; None: they are
                all there is.
        """
        chunks = split_documents(texts, counts, self.limits) if counts else split(texts, self.limits, beside)
        if first:  # the rest of something large, however small it is
            chunks = as_parts(chunks)
        return Call(chunks, self, now + self.timeout, first)


class Call(Generic[Answer]):
    """The chunks of one call and how far they are. Not for use from several threads."""

    def __init__(
        self, chunks: Sequence[Chunk], dispatcher: Dispatcher, deadline: float, first: int | None = None
    ) -> None:
        self._chunks = chunks
        self._first = first
        self._dispatcher = dispatcher
        self._deadline = deadline
        self._due = [(-math.inf, index) for index in range(len(chunks))]  # a heap: (when, chunk)
        self._failures: dict[int, list[RequestError]] = {}  # by chunk, the latest last
        self._failed_on: dict[int, int] = {}  # by chunk, the latest server
        self._dead_at: dict[int, int] = {}  # by chunk, the server whose process was dead
        self._running: set[Attempt] = set()
        self._in_flight = [0] * dispatcher.num_servers
        self._answers: dict[int, Answer] = {}  # by chunk
        self._slow_from: dict[Attempt, float] = {}  # when it may be sent elsewhere too; once each chunk

    @property
    def is_single(self) -> bool:
        """The call is one request; without hedging its sender may wait for it right away."""
        return len(self._chunks) == 1

    @property
    def is_finished(self) -> bool:
        """Every chunk is answered."""
        return len(self._answers) == len(self._chunks)

    def ready(self, now: float) -> list[Attempt]:
        """Chunks to send now, each to be settled later.

        Raises:
            RequestError: DEADLINE_EXCEEDED, the call's time is over.
        """
        if now >= self._deadline:
            answered = sum(len(self._chunks[index].texts) for index in self._answers)
            count = sum(len(chunk.texts) for chunk in self._chunks)
            failure = expired(answered, count, self._dispatcher.timeout)
            raise failure if self._first is None else failure.of_texts(self._first, count)
        attempts = []
        while self._due and self._due[0][0] <= now:
            index = self._due[0][1]
            server = self._place(index, now)
            if server is None:
                break
            heapq.heappop(self._due)
            attempts.append(self._begin(index, server, now))
        return attempts + self._extras(now)

    def settle(self, attempt: Attempt, outcome: Answer | RequestError, now: float) -> None:
        """Take note of an attempt's outcome; a failed chunk may become due again.

        Raises:
            RequestError: the chunk failed for good, and the call with it. Of a call with several chunks the
                message names the texts.
        """
        self._release(attempt)
        balancer, retries = self._dispatcher.balancer, self._dispatcher.retries
        balancer.note(attempt.server, absent=isinstance(outcome, RequestError) and is_absent(outcome))
        if not isinstance(outcome, RequestError):
            self._answers[attempt.index] = outcome
            self._measure(attempt, now)
            if attempt.is_extra and self._dispatcher.hedger is not None:
                self._dispatcher.hedger.won()
            return
        if any(other.index == attempt.index for other in self._running):  # which may still be answered
            balancer.avoid(attempt.server, now + retries.avoid_for(outcome, 0.0))
            return
        failures = self._failures.setdefault(attempt.index, [])
        failures.append(outcome)
        wait = retries.wait(failures, is_anyone_there=balancer.is_anyone_there, is_split=not self.is_single)
        if wait is None or now + wait >= self._deadline:
            if self.is_single and self._first is None:
                raise outcome
            first = attempt.chunk.first + (self._first or 0)
            raise outcome.of_texts(first, len(attempt.chunk.texts)) from outcome
        balancer.avoid(attempt.server, now + retries.avoid_for(outcome, wait))
        self._failed_on[attempt.index] = attempt.server
        if is_dead_stub(outcome):
            self._dead_at[attempt.index] = attempt.server
        heapq.heappush(self._due, (now + wait, attempt.index))

    def pause(self, now: float) -> float:
        """Seconds for which there is nothing to do unless an attempt ends."""
        until = min(self._deadline, now + _LONGEST_PAUSE)
        if self._due and self._due[0][0] > now:
            until = min(until, self._due[0][0])
        until = min((until, *self._slow_from.values()))
        return max(0.0, until - now)

    def losers(self, now: float) -> list[Attempt]:
        """Attempts whose chunk was answered elsewhere meanwhile: whoever sent them cancels them."""
        lost = [attempt for attempt in self._running if attempt.index in self._answers]
        for attempt in lost:
            self._release(attempt)
            self._measure(attempt, now)
        return lost

    def extend(self, seconds: float) -> None:
        """Put the deadline off, by a time in which nobody could drive the call."""
        self._deadline += seconds

    def answers(self) -> list[Answer]:
        """Every chunk's answer, in the order of the texts."""
        return [self._answers[index] for index in range(len(self._chunks))]

    def close(self) -> None:
        """Give up what is still running, so that its servers no longer count as busy."""
        for attempt in tuple(self._running):
            self._release(attempt)

    def _begin(self, index: int, server: int, now: float, *, is_extra: bool = False) -> Attempt:
        attempt = Attempt(index, self._chunks[index], server, self._deadline - now, now, is_extra)
        self._running.add(attempt)
        self._in_flight[server] += 1
        hedger = self._dispatcher.hedger
        if hedger is not None and not is_extra:
            hedger.sent()
            delay = hedger.delay(attempt.chunk.tokens)
            if delay < math.inf:
                self._slow_from[attempt] = now + delay
        return attempt

    def _extras(self, now: float) -> list[Attempt]:
        """Slow chunks once more, elsewhere if there is an elsewhere, within the budget."""
        extras: list[Attempt] = []
        hedger = self._dispatcher.hedger
        if hedger is None:
            return extras
        for attempt in [attempt for attempt, slow_from in self._slow_from.items() if slow_from <= now]:
            not_there = (attempt.server,) if self._dispatcher.num_servers > 1 else ()
            server = self._place(attempt.index, now, not_there) if hedger.has_credit else None
            if server is None:  # perhaps later
                self._slow_from[attempt] = now + hedger.delay(attempt.chunk.tokens)
                continue
            hedger.spend()
            del self._slow_from[attempt]
            extras.append(self._begin(attempt.index, server, now, is_extra=True))
        return extras

    def _measure(self, attempt: Attempt, now: float) -> None:
        if self._dispatcher.hedger is not None and not attempt.is_extra:
            self._dispatcher.hedger.measured(attempt.chunk.tokens, now - attempt.began)

    def _place(self, index: int, now: float, not_there: tuple[int, ...] = ()) -> int | None:
        full = {server for server, count in enumerate(self._in_flight) if count >= self._dispatcher.max_in_flight}
        full.update(not_there)
        return self._dispatcher.balancer.take(
            self._chunks[index].tokens,
            now,
            full=full,
            failed=self._failed_on.get(index),
            dead=self._dead_at.get(index),
        )

    def _release(self, attempt: Attempt) -> None:
        self._running.remove(attempt)
        self._slow_from.pop(attempt, None)
        self._in_flight[attempt.server] -= 1
        self._dispatcher.balancer.release(attempt.server, attempt.chunk.tokens)
