"""Which server gets the next chunk."""

from __future__ import annotations

import math
import threading
from collections.abc import Container


class Balancer:
    """Sends work to the server with the least outstanding tokens, as estimated; ties go round.

    One balancer serves all calls of a client, from whatever threads.

    Args:
        num_servers: servers are known by their index.
    """

    def __init__(self, num_servers: int) -> None:
        self._outstanding = [0] * num_servers  # tokens
        self._avoided_until = [-math.inf] * num_servers
        self._absent: set[int] = set()
        self._turn = 0
        self._lock = threading.Lock()

    def take(
        self,
        tokens: int,
        now: float,
        *,
        full: Container[int] = (),
        failed: int | None = None,
        dead: int | None = None,
    ) -> int | None:
        """Choose a server and count the tokens as outstanding there until `release`.

        Args:
            tokens: of the chunk.
            now: seconds, on the clock of `avoid`.
            full: servers that take no more of this call at present.
            failed: the server the chunk failed on; chosen again only for want of another.
            dead: the server where it met a dead process; if there are others it waits for one rather than go back.

        Returns:
            The server, or None while none may be used. Avoided ones are used only if all are avoided.
        """
        with self._lock:
            if len(self._outstanding) == 1:
                if 0 in full:
                    return None
                self._outstanding[0] += tokens
                return 0
            servers = [server for server in range(len(self._outstanding)) if server != dead] or [0]
            usable = [server for server in servers if self._avoided_until[server] <= now] or servers
            free = [server for server in usable if server not in full]
            if not free:
                return None

            def rank(server: int) -> tuple[bool, int, int]:
                return server == failed, self._outstanding[server], (server - self._turn) % len(self._outstanding)

            chosen = min(free, key=rank)
            self._outstanding[chosen] += tokens
            self._turn = chosen + 1
            return chosen

    def release(self, server: int, tokens: int) -> None:
        """The tokens are done with: answered, failed or cancelled."""
        with self._lock:
            self._outstanding[server] -= tokens

    def note(self, server: int, *, absent: bool) -> None:
        """Whether anybody was there to answer, the last time."""
        with self._lock:
            (self._absent.add if absent else self._absent.discard)(server)

    @property
    def is_anyone_there(self) -> bool:
        """Some server was there the last time, or was never asked."""
        with self._lock:
            return len(self._absent) < len(self._outstanding)

    def avoid(self, server: int, until: float) -> None:
        """Leave a server alone until then, if there are others."""
        with self._lock:
            self._avoided_until[server] = max(self._avoided_until[server], until)
