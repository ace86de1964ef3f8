"""Whether models really answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from rose_client.errors import RequestError
from rose_client.gateway.context import Context
from rose_client.gateway.embedder import Embedder
from rose_client.gateway.errors import GatewayError
from rose_client.gateway.models import Contract, Model, Models
from rose_client.gateway.scoring import scorer_of

_SECONDS = 5.0  # for a tiny inference
_FRESH_SECONDS = 1.0
_READY = "ready"
_TINY = b"a"


class Readiness:
    """Asks every model for a tiny inference; one round at a time, and its result holds for a second.

    Args:
        models: whose.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._lock = asyncio.Lock()
        self._checked_at = -float("inf")
        self._found: Mapping[str, str] = {}

    async def check(self) -> Mapping[str, str]:
        """`ready` or a cause, by model.

        Raises:
            GatewayError: 503, something is not ready; the message says what.
        """
        async with self._lock:
            if time.monotonic() - self._checked_at > _FRESH_SECONDS:
                self._found = await self._ask()
                self._checked_at = time.monotonic()
        causes = [f"{name}: {state}" for name, state in self._found.items() if state != _READY]
        if causes or not self._found:
            message = "; ".join(causes) or "the servers have no models"
            raise GatewayError(503, "not_ready", message, retry_after=_FRESH_SECONDS)
        return self._found

    async def _ask(self) -> Mapping[str, str]:
        models = await self._models.all()
        states = await asyncio.gather(*(_state(model) for model in models))
        return {model.name: state for model, state in zip(models, states, strict=True)}


async def _state(model: Model) -> str:
    try:
        await asyncio.wait_for(_infer(model), _SECONDS)
    except asyncio.TimeoutError:
        return f"no answer within {_SECONDS:g} s"
    except RequestError as error:
        # A full queue is refused by a model that works.
        return _READY if GatewayError.of(error, "input").status == 429 else str(error)
    return _READY


async def _infer(model: Model) -> None:
    uncached, context = Embedder(None), Context("", {})
    if model.contract is Contract.EMBED:
        await uncached.embed(model, [_TINY], {}, context)
    else:
        await scorer_of(model, uncached).score(_TINY, [_TINY], {}, context)
