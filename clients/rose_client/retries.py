"""Which failures are worth another try, and how long to wait before it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rose_client.errors import RequestError

# gRPC has one status for a server where nobody listens and one that says it is busy; only the words differ.
_NO_CONNECTION = re.compile(
    r"failed to connect|DNS resolution failed|connections to all backends failing", re.IGNORECASE
)
# A server that ends, or reloads a model, unloads it first; a name it never had "is not found".
_UNLOADED = "has no available versions"
_DEAD_STUB = re.compile(r"stub process .* is not healthy", re.IGNORECASE)
_HINT = re.compile(r"retry (?:after|in) (\d+(?:\.\d+)?) ?ms\b", re.IGNORECASE)
_MOST_DOUBLINGS = 30  # far past any longest wait, and still a small float


def is_absent(error: RequestError) -> bool:
    """Nobody there could answer: no connection came about, or the model is unloaded."""
    if error.status == "NOT_FOUND":
        return _UNLOADED in error.message
    return error.status == "UNAVAILABLE" and _NO_CONNECTION.search(error.message) is not None


def is_dead_stub(error: RequestError) -> bool:
    """A model's process died; Triton does not restart it, and goes on calling the model ready."""
    return error.status == "INTERNAL" and _DEAD_STUB.search(error.message) is not None


def hinted_wait(message: str) -> float:
    """Seconds a server asks for with "retry after N ms" or "retry in N ms"; 0 without such words."""
    hint = _HINT.search(message)
    return float(hint[1]) / 1e3 if hint else 0.0


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed chunk is sent again, always within the call's deadline.

    UNAVAILABLE is retried until the deadline as long as some server is there (`busy_tries` may end it sooner), a dead
    stub once, anything else never: it would fail again, or might be what kills servers.

    Attributes:
        first_wait: seconds before the first retry; each further wait is twice as long.
        longest_wait: seconds a wait grows to, a server's own hint aside.
        jitter: share of a wait that is left to chance, so that clients do not come back all at once.
        absent_tries: how often a chunk may find no server, or no model there, when all servers are absent.
        busy_tries: how often the one chunk of a call may be refused by servers that are there; None: until the
            deadline. Chunks of a split call are not counted, since what the others brought would be lost.
        avoidance: seconds for which a server is left alone that was absent or has a dead stub, if there are others.
    """

    first_wait: float = 0.05
    longest_wait: float = 2.0
    jitter: float = 0.5
    absent_tries: int = 7
    busy_tries: int | None = None
    avoidance: float = 1.0

    def wait(self, failures: Sequence[RequestError], *, is_anyone_there: bool, is_split: bool = False) -> float | None:
        """Seconds until a chunk goes out again; None if it must not.

        Args:
            failures: of the chunk, the latest last.
            is_anyone_there: not all servers are absent; a chunk may meet an absent one often while the rest is full.
            is_split: the chunk is one of several of its call.
        """
        latest = failures[-1]
        if is_dead_stub(latest):
            if sum(map(is_dead_stub, failures)) > 1:
                return None
        elif is_absent(latest):
            if not is_anyone_there and sum(map(is_absent, failures)) >= self.absent_tries:
                return None
        elif latest.status != "UNAVAILABLE":
            return None
        elif self.busy_tries is not None and not is_split:
            refusals = sum(failure.status == "UNAVAILABLE" and not is_absent(failure) for failure in failures)
            if refusals >= self.busy_tries:
                return None
        doubled = self.first_wait * 2.0 ** min(len(failures) - 1, _MOST_DOUBLINGS)
        certain = 1 - self.jitter * random.random()  # noqa: S311 - spreads load, guards nothing
        return hinted_wait(latest.message) + min(doubled, self.longest_wait) * certain

    def avoid_for(self, error: RequestError, wait: float) -> float:
        """Seconds to leave a server alone that failed like this, when its chunk waits for `wait` seconds."""
        return max(wait, self.avoidance) if is_absent(error) or is_dead_stub(error) else wait


DEFAULT_RETRIES = RetryPolicy()
