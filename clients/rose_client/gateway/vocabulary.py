"""What only a checkpoint's files tell: tokens in words, limits, pooling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rose_backend.errors import InvalidArgumentError, RoseError
from rose_client.gateway.config import GatewayConfig
from rose_client.gateway.errors import GatewayError
from rose_client.gateway.models import Contract, Model, Models
from rose_ensemble.checkpoint import Checkpoint, read_checkpoint
from rose_ensemble.default_checkpoint import resolve_checkpoint

if TYPE_CHECKING:
    from rose_ensemble.tokenization import TextTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """A checkpoint's prompts and tokenizer."""

    checkpoint: Checkpoint
    tokenizer: TextTokenizer

    async def tokens(
        self, texts: Sequence[str], prompt_name: str | None, *, add_special_tokens: bool
    ) -> list[list[dict[str, Any]]]:
        """The tokens of each text, in another thread.

        Raises:
            GatewayError: there is no such prompt, or a text cannot be tokenized.
        """
        prompts = self.checkpoint.prompts
        if prompt_name is not None and prompt_name not in prompts:
            raise GatewayError.invalid(f"prompt_name {prompt_name!r} is not known; known: {sorted(prompts)}")
        prompt = "" if prompt_name is None else prompts[prompt_name]
        try:
            found = await asyncio.to_thread(
                self.tokenizer.pieces, [prompt + text for text in texts], add_special_tokens=add_special_tokens
            )
        except InvalidArgumentError as error:
            raise GatewayError.invalid(str(error)) from error
        return [
            [
                {"id": piece.id, "text": piece.text, "special": piece.special, "start": piece.start, "stop": piece.stop}
                for piece in pieces
            ]
            for pieces in found
        ]


class Vocabularies:
    """Of the gateway's models, read when first asked for.

    Args:
        models: tell where their checkpoints are.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._read: dict[str, Vocabulary] = {}

    async def of(self, model: Model) -> Vocabulary:
        """A model's.

        Raises:
            GatewayError: the checkpoint cannot be read on this machine.
        """
        name = (await self._parameters(model, "tokenize")).get("checkpoint", "")
        if name not in self._read:
            try:
                self._read[name] = await asyncio.to_thread(_read, name)
            except (RoseError, ImportError) as cause:
                raise GatewayError.unsupported(
                    f"tokens of model {model.name!r} need its files here: {cause}"
                ) from cause
        return self._read[name]

    async def info(self, model: Model, config: GatewayConfig) -> dict[str, Any]:
        """TEI's description of a model."""
        engine = await self._parameters(model, "rose")
        name = engine.get("checkpoint", model.name)
        try:
            checkpoint = (await self.of(model)).checkpoint
        except GatewayError:
            checkpoint = None
        pooling = None if checkpoint is None else checkpoint.head.pooling.value
        kinds = {Contract.EMBED: {"embedding": {"pooling": pooling}}, Contract.SCORE: {"reranker": {}}}
        return {
            "model_id": name,
            "model_sha": None,
            "model_dtype": engine.get("dtype", "auto"),
            "served_model_name": model.name,
            "model_type": kinds[model.contract],
            "max_concurrent_requests": _number(engine, "max_queued_requests"),
            "max_input_length": None if checkpoint is None else checkpoint.max_length,
            "max_batch_tokens": _number(engine, "token_budget"),
            "max_batch_requests": None,
            "max_client_batch_size": config.max_inputs,
            "auto_truncate": True,
            "tokenization_workers": None,
            "version": version("rose-on-triton"),
        }

    async def _parameters(self, model: Model, step: str) -> Mapping[str, str]:
        """Parameters of the ensemble's step whose name ends so; none where it has no such step."""
        ensemble = await self._models.config_of(model.name)
        steps = [entry["model_name"] for entry in ensemble.get("ensemble_scheduling", {}).get("step", ())]
        for name in steps:
            if name == step or name.endswith(f"_{step}"):
                found = (await self._models.config_of(name)).get("parameters", {})
                return {key: value["string_value"] for key, value in found.items()}
        return {}


def _read(name: str) -> Vocabulary:
    from rose_ensemble.tokenization import TextTokenizer  # needs `tokenizers`, which a gateway need not have

    checkpoint = read_checkpoint(resolve_checkpoint(name))
    return Vocabulary(checkpoint, TextTokenizer(checkpoint))


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    value = parameters.get(name, "")
    return int(value) if value.isdigit() else None
