"""The folder of pipelines a server loads: add, list, remove."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path

from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.default_checkpoint import resolve_checkpoint
from rose_ensemble.engine_settings import EngineSettings
from rose_ensemble.outputs import forms_offered
from rose_ensemble.pipeline import Pipeline

_RECORD = "pipeline.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def default_repository() -> Path:
    """`$XDG_STATE_HOME/rose/repository`, by default under `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "rose" / "repository"


class Repository:
    """A Triton model repository whose folders this package wrote.

    Args:
        folder: created when the first pipeline is added.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pipelines(self) -> list[Pipeline]:
        """What is in the repository, by name.

        Raises:
            CheckpointError: a record cannot be read.
        """
        records = sorted(self.folder.glob(f"*/{_RECORD}")) if self.folder.is_dir() else []
        return [_load(record) for record in records]

    def add(self, pipeline: Pipeline) -> Pipeline:
        """Write the three model folders, replacing those of the same name.

        Returns:
            The pipeline as it was written, with the contract that its checkpoint calls for.

        Raises:
            CheckpointError: the name cannot be a model name or is taken, or the checkpoint cannot be served.
        """
        if not _NAME.fullmatch(pipeline.name):
            raise CheckpointError(
                f"name {pipeline.name!r}: use letters, digits, '_', '-' and '.', starting with one of the first two"
            )
        self._refuse_clash(pipeline)
        checkpoint = read_checkpoint(resolve_checkpoint(pipeline.checkpoint))
        checkpoint.matryoshka.told(pipeline.engine.matryoshka)
        pipeline = replace(pipeline, scores=checkpoint.scoring is not None, outputs=forms_offered(checkpoint.head))
        adapters = _adapters()
        for model, config in pipeline.configs().items():
            version = self.folder / model / "1"
            version.mkdir(parents=True, exist_ok=True)
            (self.folder / model / "config.pbtxt").write_text(config)
            adapter = {pipeline.tokenize_name: "tokenize", pipeline.rose_name: "rose"}.get(model)
            if adapter is not None:
                shutil.copyfile(adapters / adapter / "1" / "model.py", version / "model.py")
        values = asdict(pipeline)
        del values["outputs"]  # what the checkpoint says; a version before this one would not know the key
        record = json.dumps(values, indent=1)
        (self.folder / pipeline.name / _RECORD).write_text(record + "\n")
        return pipeline

    def remove(self, name: str) -> None:
        """Delete a pipeline's three folders.

        Raises:
            CheckpointError: there is no pipeline of that name.
        """
        for pipeline in self.pipelines():
            if pipeline.name == name:
                for model in pipeline.configs():
                    shutil.rmtree(self.folder / model)
                return
        known = [pipeline.name for pipeline in self.pipelines()]
        raise CheckpointError(f"no pipeline {name!r} in {self.folder}; it holds {known}")

    def _refuse_clash(self, pipeline: Pipeline) -> None:
        wanted = set(pipeline.configs())
        for other in self.pipelines():
            taken = wanted & set(other.configs())
            if other.name != pipeline.name and taken:
                raise CheckpointError(f"model names {sorted(taken)} belong to pipeline {other.name!r}")


def _load(record: Path) -> Pipeline:
    try:
        values = json.loads(record.read_text())
        engine = EngineSettings(**values.get("engine", {}))
        return Pipeline(**{**values, "devices": tuple(values["devices"]), "engine": engine})
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise CheckpointError(f"{record} is not a pipeline this version wrote: {cause!r}; remove its folder") from cause


def _adapters() -> Path:
    """The checked-in `model_repository`: inside the installed package, or beside it in a checkout."""
    packaged = Path(str(files("rose_ensemble"))) / "adapters"
    return packaged if packaged.is_dir() else Path(str(files("rose_ensemble"))).parents[1] / "model_repository"
