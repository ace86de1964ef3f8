"""One engine among those of its model: how it is configured, and how work is shared with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose_backend.config import EngineConfig, QueueConfig
from rose_backend.core import Lane
from rose_backend.queue_board import QueueBoard
from rose_backend.service import RoseService
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.cores import engine_threads
from rose_ensemble.default_checkpoint import resolve_checkpoint
from rose_ensemble.devices import resolve_device
from rose_ensemble.engine_settings import EngineSettings
from rose_ensemble.matryoshka import Matryoshka
from rose_ensemble.pipeline import device_of_instance, index_of_instance

_BUDGETS_IN_HAND = 2  # bulk work an engine keeps waiting while others have less
_LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True)
class EngineInstance:
    """What an instance of a `rose` model is told.

    Attributes:
        index: its place among the engines of the model.
        count: how many there are.
        config: of the engine.
        queue: of the queue in front of it.
        matryoshka: the `dimensions` that requests may ask for.
        outputs: names of the model's outputs.
    """

    index: int
    count: int
    config: EngineConfig
    queue: QueueConfig
    matryoshka: Matryoshka
    outputs: frozenset[str]

    @classmethod
    def of(cls, model_config: Mapping[str, Any], instance_name: str) -> EngineInstance:
        """Read the model's configuration and the checkpoint it names.

        Raises:
            CheckpointError: either cannot be served.
        """
        parameters = {key: value["string_value"] for key, value in model_config["parameters"].items()}
        settings = EngineSettings.of(parameters)
        checkpoint = read_checkpoint(resolve_checkpoint(parameters["checkpoint"]))
        count = len(model_config["instance_group"])
        config = EngineConfig(
            checkpoint=checkpoint.folder,
            max_length=checkpoint.max_length,
            head=checkpoint.head,
            device=resolve_device(device_of_instance(instance_name)),
            token_budget=settings.token_budget,
            dtype=settings.dtype,
            attention=settings.attention,
            score=None if checkpoint.scoring is None else checkpoint.scoring.config,
            cpu_threads=engine_threads(count),
        )
        queue = QueueConfig(settings.max_queued_tokens, settings.max_queued_requests, settings.lanes == "auto")
        matryoshka = checkpoint.matryoshka.told(settings.matryoshka)
        outputs = frozenset(output["name"] for output in model_config["output"])
        return cls(index_of_instance(instance_name), count, config, queue, matryoshka, outputs)

    def hold_back(self, service: RoseService, board: QueueBoard) -> None:
        """Keep the server from handing this engine more while it has enough and another has less.

        Triton gives work to instances in turn, however busy, as long as their `execute` returns at once. If every
        engine has enough, nothing is won by waiting, and online requests would wait as well.
        """
        enough = _BUDGETS_IN_HAND * service.bulk_budget
        while service.depth(Lane.BULK).tokens >= enough and board.another_has_room(self.index, enough):
            service.wait_for_progress(_LOOK_AGAIN_SECONDS)
