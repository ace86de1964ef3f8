"""Which models the servers have, found out from their metadata."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from rose_client.aio import AsyncRoseClient
from rose_client.errors import RequestError
from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.errors import GatewayError
from rose_client.hedging import Hedger, HedgeWatch
from rose_client.retries import RetryPolicy
from rose_client.wire import CHANNEL_ARGUMENTS

_CONTROL_SECONDS = 5.0  # for one question about models
_FRESH_SECONDS = 1.0  # what was found this long ago is not asked for again


class Contract(Enum):
    """What a model takes and gives (README.md, "Request and response")."""

    EMBED = "embed"
    SCORE = "score"


_CONTRACTS = {
    Contract.EMBED: ({"TEXT"}, {"EMBEDDING", "TOKEN_COUNT"}),
    Contract.SCORE: ({"QUERY", "DOCUMENT"}, {"SCORE"}),
}


@dataclass(frozen=True)
class Model:
    """A model that can be called.

    Attributes:
        name: as servers know it.
        contract: what it takes and gives.
        outputs: names of its tensors.
        client: calls it, on whichever server.
    """

    name: str
    contract: Contract
    outputs: frozenset[str]
    client: AsyncRoseClient


class Models:
    """The models of a gateway's servers. Use from one event loop; `close` in the end.

    Args:
        config: names the servers.
        watch: told of hedges.
    """

    def __init__(self, config: GatewayConfig, watch: HedgeWatch) -> None:
        self._config = config
        self._watch = watch
        self._controls = [grpcclient.InferenceServerClient(url, channel_args=CHANNEL_ARGUMENTS) for url in config.urls]
        # A full queue is told at once to whoever asked: their client waits better than a request that is held here.
        self._retries = RetryPolicy(busy_tries=len(config.urls), absent_tries=3)
        self._known: dict[str, Model] = {}
        self._found_at = -float("inf")
        self._lock = asyncio.Lock()

    async def get(self, name: str | None, prefer: Contract = Contract.EMBED) -> Model:
        """A model by its name; without one, the first of the contract, else the first of all.

        Raises:
            GatewayError: there is none (404), or nobody to ask (503).
        """
        found = self._pick(name, prefer)
        if found is None:
            await self.all()
            found = self._pick(name, prefer)
        if found is None:
            raise GatewayError(
                404, "model_not_found", f"model {name!r} does not exist; known: {sorted(self._known)}", param="model"
            )
        return found

    async def all(self) -> list[Model]:
        """Every model, by name; asked of the servers unless that was done just now.

        Raises:
            GatewayError: no server answers, and none did before.
        """
        async with self._lock:
            if time.monotonic() - self._found_at > _FRESH_SECONDS:
                await self._find()
        return [self._known[name] for name in sorted(self._known)]

    async def config_of(self, name: str) -> Mapping[str, Any]:
        """A model's configuration, as JSON.

        Raises:
            GatewayError: no server tells it.
        """
        config: Mapping[str, Any] = await self._ask("get_model_config", name, as_json=True, key="config")
        return config

    async def close(self) -> None:
        """Close all connections."""
        for client in [*self._controls, *(model.client for model in self._known.values())]:
            await client.close()

    def _pick(self, name: str | None, prefer: Contract) -> Model | None:
        if name is not None:
            return self._known.get(name)
        models = [self._known[key] for key in sorted(self._known)]
        return next((model for model in models if model.contract is prefer), models[0] if models else None)

    async def _find(self) -> None:
        try:
            index = await self._ask("get_model_repository_index", as_json=True, key="models")
        except GatewayError:
            if self._known:  # servers that are away do not change what they have
                return
            raise
        ready = [entry["name"] for entry in index if entry.get("state") == "READY"]
        found = await asyncio.gather(*(self._describe(name) for name in ready))
        gone = set(self._known) - {model.name for model in found if model is not None}
        for name in gone - {entry["name"] for entry in index}:
            await self._known.pop(name).client.close()
        self._known.update({model.name: model for model in found if model is not None})
        self._found_at = time.monotonic()

    async def _describe(self, name: str) -> Model | None:
        """The model, or None if it has neither contract, as the steps of an ensemble."""
        try:
            metadata = await self._ask("get_model_metadata", name, as_json=True)
            hedger = None if name in self._known else await self._hedger(name)
        except GatewayError:  # unloaded since the index was made
            return None
        inputs = {tensor["name"] for tensor in metadata.get("inputs", ())}
        outputs = frozenset(tensor["name"] for tensor in metadata.get("outputs", ()))
        for contract, (needed, given) in _CONTRACTS.items():
            if needed <= inputs and given <= outputs:
                known = self._known.get(name)
                client = known.client if known is not None else self._client(name, hedger)
                return Model(name, contract, outputs, client)
        return None

    def _client(self, name: str, hedger: Hedger | None) -> AsyncRoseClient:
        return AsyncRoseClient(self._config.urls, name, self._config.timeout, retries=self._retries, hedger=hedger)

    async def _hedger(self, name: str) -> Hedger | None:
        """Of a model's chunks, if there is anywhere else to send a slow one."""
        policy = self._config.hedging
        if policy is None or (len(self._config.urls) == 1 and await self._num_engines(name) < 2):
            return None
        return Hedger(policy, self._watch)

    async def _num_engines(self, name: str) -> int:
        """Instances of a model, or of an ensemble's last step, on one server."""
        config = await self.config_of(name)
        steps = config.get("ensemble_scheduling", {}).get("step", ())
        if steps:
            config = await self.config_of(steps[-1]["model_name"])
        return sum(int(group.get("count", 1)) for group in config.get("instance_group", ()))

    async def _ask(self, question: str, *arguments: Any, key: str | None = None, **options: Any) -> Any:
        """The first server's answer that comes."""
        failures: list[RequestError] = []
        for control in self._controls:
            try:
                answer = await getattr(control, question)(*arguments, client_timeout=_CONTROL_SECONDS, **options)
            except InferenceServerException as cause:  # noqa: PERF203 - a network call each
                failures.append(RequestError.of(cause))
            else:
                return answer if key is None else answer.get(key, ())
        raise GatewayError.of(_most_telling(failures), "input")


def _most_telling(failures: Sequence[RequestError]) -> RequestError:
    """A server's own words rather than that it is not there."""
    return next((failure for failure in failures if failure.status != "UNAVAILABLE"), failures[0])
