"""What a gateway is told at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rose_client.gateway.merging import MergePolicy
from rose_client.hedging import HedgePolicy


@dataclass(frozen=True)
class GatewayConfig:
    """Servers, limits and keys.

    Attributes:
        urls: `host:port` of each server's gRPC endpoint; all serve the same models.
        timeout: seconds a request may take, retries included.
        max_body_bytes: largest body of a request.
        max_inputs: most texts, token lists or documents of a request.
        api_keys: whoever presents one of them as a bearer is let in; without any, everybody is.
        metrics_urls: `host:port` of the servers' metrics pages, for the status page.
        cache_bytes: most memory of a process for vectors of texts that came before; 0: none are kept.
        hedging: when a chunk that is slow goes to another server or engine too; None: never.
        merging: which small requests travel together while others are under way; None: none.
    """

    urls: Sequence[str] = ("localhost:8001",)
    timeout: float = 60.0
    max_body_bytes: int = 32 * 2**20
    max_inputs: int = 4096
    api_keys: Sequence[str] = field(default=(), repr=False)
    metrics_urls: Sequence[str] = ()
    cache_bytes: int = 0
    hedging: HedgePolicy | None = None
    merging: MergePolicy | None = MergePolicy()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_inputs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a request needs room for at least 1")
        if self.cache_bytes < 0:
            raise ValueError(f"cache_bytes is {self.cache_bytes}: give none or a positive number")
        if not all(self.api_keys):
            raise ValueError("api_keys holds an empty key, which anybody could present")
