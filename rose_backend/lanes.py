"""The queue in front of the packer: two lanes that take turns, bounded together, and what leaves it unpacked."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from rose_backend.config import QueueConfig
from rose_backend.core import Batch, Lane, Outcome, Request
from rose_backend.errors import RoseError, UnavailableError
from rose_backend.packer import TokenPacker

logger = logging.getLogger(__name__)

_BULK_SEQUENCES = 32
_SMALL_IN_A_TURN = 4  # online batches, each at most such a part of a bulk batch
_ALONE_SECONDS = 10.0  # without a request in the online lane; then the next one may wait for a long batch
_PATIENT_SECONDS = 0.05  # asking whether a sender has gone costs a message: not of what hardly waited, nor every batch


@dataclass(frozen=True)
class Dropped:
    """A request that left the queue unpacked, and what its sender is told if it still listens."""

    request: Request
    error: RoseError
    outcome: Outcome


class Depth(NamedTuple):
    """How full a queue is: what waits, not yet in any batch."""

    tokens: int
    requests: int


class BulkPackers(NamedTuple):
    """What makes batches of bulk work."""

    beside: TokenPacker
    """While anybody is online, who may have to wait for one: smaller ones than the online lane's own."""
    alone: TokenPacker
    """While nobody is."""


@dataclass
class LanedQueue:
    """Requests by lane. Not thread-safe: the service locks around it.

    Small requests go to the online lane, and large ones, which would hold them up, to the bulk lane. While both wait
    they take turns, a batch each; of online batches that are small beside a bulk one, a few are one turn, so that who
    comes while another's small batch runs does not wait for a bulk batch, too. An online request waits for one bulk
    batch at most, and bulk work never starves. How large that is depends on whether anybody was online lately. Where
    a step can be interrupted, the online lane has its turn inside the bulk batch instead of after it.

    Attributes:
        config: bounds, and whether there are lanes at all.
        packer: makes batches.
        clock: `time.monotonic`.
        bulk: makes those of bulk work; None: as all others.
    """

    config: QueueConfig
    packer: TokenPacker
    clock: Callable[[], float] = time.monotonic
    bulk: BulkPackers | None = None
    _waiting: dict[Lane, deque[Request]] = field(init=False)
    _tokens: dict[Lane, int] = field(init=False)
    _dropped: list[Dropped] = field(default_factory=list, init=False)
    _online_turn: int = field(default=0, init=False)  # of `_SMALL_IN_A_TURN`, how much of it was used
    _online_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._waiting = {lane: deque() for lane in Lane}
        self._tokens = dict.fromkeys(Lane, 0)

    def add(self, request: Request, tokens_per_second: float) -> Lane:
        """Queue a request in its lane.

        Args:
            request: checked already.
            tokens_per_second: what the device does now, for the hint in the refusal; 0 if not known.

        Raises:
            UnavailableError: the queue is full; says how full and when to come back.
        """
        depth, config, num_tokens = self.depth(), self.config, len(request.input_ids)
        # A request larger than the whole queue is taken when nothing else waits.
        too_many_tokens = depth.tokens and depth.tokens + num_tokens > config.max_tokens
        if too_many_tokens or depth.requests >= config.max_requests:
            raise UnavailableError(full_message(depth, config, tokens_per_second))
        lane = self._lane_of(request)
        self._waiting[lane].append(request)
        self._tokens[lane] += num_tokens
        if lane is Lane.ONLINE and not request.probe:
            self._online_at = request.arrived
        return lane

    def take(self) -> Batch | None:
        """The next batch, from the lane whose turn it is; None where nothing waits."""
        lanes = (Lane.ONLINE, Lane.BULK) if self._is_online_turn else (Lane.BULK, Lane.ONLINE)
        for lane in lanes:
            batch = self._take_from(lane)
            if batch is not None:
                return batch
        return None

    def take_online(self) -> Batch | None:
        """The online lane's next batch if it is its turn, while a bulk batch runs that can be interrupted."""
        return self._take_from(Lane.ONLINE) if self._is_online_turn else None

    def take_dropped(self) -> list[Dropped]:
        """What left the queue unpacked since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def depth(self, lane: Lane | None = None) -> Depth:
        """What waits in a lane, or in both."""
        tokens, waiting = self._tokens, self._waiting
        if lane is not None:
            return Depth(tokens[lane], len(waiting[lane]))
        online, bulk = Lane.ONLINE, Lane.BULK  # spelled out: this runs for every request
        return Depth(tokens[online] + tokens[bulk], len(waiting[online]) + len(waiting[bulk]))

    @property
    def bulk_budget(self) -> int:
        """Most tokens of the next batch of bulk work."""
        return self._packer_of(Lane.BULK).token_budget

    @property
    def _is_online_turn(self) -> bool:
        return self._online_turn < _SMALL_IN_A_TURN

    def _take_from(self, lane: Lane) -> Batch | None:
        waiting, now = self._waiting[lane], self.clock()
        if not waiting:
            return None
        batch = self._packer_of(lane).take(waiting, partial(self._unwanted, now))
        if batch is not None:
            self._tokens[lane] -= batch.num_tokens
            self._note_turn(lane, batch.num_tokens)
            for segment in batch.segments:
                if segment.request.packed_at is None:
                    segment.request.packed_at = now
        return batch

    def _lane_of(self, request: Request) -> Lane:
        if not self.config.lanes:
            request.lane = Lane.ONLINE
        elif request.lane is None:
            large = len(request.lengths) > _BULK_SEQUENCES or len(request.input_ids) > self.packer.token_budget
            request.lane = Lane.BULK if large else Lane.ONLINE
        return request.lane

    def _packer_of(self, lane: Lane) -> TokenPacker:
        if self.bulk is None or lane is Lane.ONLINE:
            return self.packer
        if self._waiting[Lane.ONLINE] or self.clock() < self._online_at + _ALONE_SECONDS:
            return self.bulk.beside
        return self.bulk.alone

    def _note_turn(self, lane: Lane, num_tokens: int) -> None:
        if lane is Lane.BULK:
            self._online_turn = 0
        else:
            is_small = num_tokens * _SMALL_IN_A_TURN <= self.bulk_budget
            self._online_turn += 1 if is_small else _SMALL_IN_A_TURN

    def _unwanted(self, now: float, request: Request) -> bool:
        """Whether nobody waits for the rest of a request any more."""
        if request.answered:  # an earlier part failed
            pass
        elif request.deadline is not None and now > request.deadline:
            waited = (now - request.arrived) * 1e3
            error = UnavailableError(
                f"the request's timeout expired while it was queued, {waited:.0f} ms after it came"
            )
            self._dropped.append(Dropped(request, error, Outcome.EXPIRED))
        elif now > max(request.arrived, request.asked_at) + _PATIENT_SECONDS and _is_cancelled(request, now):
            error = UnavailableError("the request was cancelled while it was queued")
            self._dropped.append(Dropped(request, error, Outcome.CANCELLED))
        else:
            return False
        assert request.lane is not None
        self._tokens[request.lane] -= request.tokens_left
        return True


def _is_cancelled(request: Request, now: float) -> bool:
    if request.is_cancelled is None:
        return False
    request.asked_at = now
    try:
        return request.is_cancelled()
    except Exception:
        # It costs a message to another process, which can fail; the thread that serves everybody must not end with it.
        logger.exception("cannot tell whether a request was cancelled")
        return False


def full_message(depth: Depth, config: QueueConfig, tokens_per_second: float) -> str:
    """What a refused sender is told."""
    text = (
        f"the queue is full: {depth.tokens} of {config.max_tokens} tokens "
        f"and {depth.requests} of {config.max_requests} requests wait"
    )
    if tokens_per_second <= 0:
        return text
    # Half the queue: by then there is room again, and senders do not all wait for an empty one.
    return f"{text}; retry after {max(1, round(depth.tokens / 2 / tokens_per_second * 1e3))} ms"
