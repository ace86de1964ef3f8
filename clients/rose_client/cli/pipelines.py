"""Options that say how pipelines are served, shared by the commands that take them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rose_backend.cores import usable_cores
from rose_ensemble.devices import parse_devices
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository

_CORES_PER_TOKENIZER = 4
_MOST_TOKENIZERS = 8

DeviceOption = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, or cuda:0,cuda:1,...: one engine each.", show_default="auto")
]
TokenizersOption = Annotated[
    int | None, typer.Option("--tokenizers", min=1, help="Processes that tokenize; default: one for every 4 cores.")
]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", show_default="auto")
]
AttentionOption = Annotated[
    str | None, typer.Option("--attention", help="auto (measured), or a backend's name.", show_default="auto")
]
BudgetOption = Annotated[
    int | None, typer.Option("--token-budget", min=1, help="Most tokens in a batch; default: measured at start.")
]
QueuedTokensOption = Annotated[
    int | None, typer.Option("--max-queued-tokens", min=1, help="Tokens that may wait.", show_default="2097152")
]
QueuedRequestsOption = Annotated[
    int | None, typer.Option("--max-queued-requests", min=1, help="Requests that may wait.", show_default="8192")
]
LanesOption = Annotated[
    str | None,
    typer.Option("--lanes", help="auto: bulk requests queue apart; off: in order of arrival.", show_default="auto"),
]
MatryoshkaOption = Annotated[
    str | None,
    typer.Option(
        "--matryoshka",
        help="Lengths that requests may cut vectors to: auto (as the files say), off, any, or e.g. 128,256.",
        show_default="auto",
    ),
]


def default_tokenizers() -> int:
    """Enough to keep one engine busy with short texts, and no more than the cores carry."""
    return max(1, min(_MOST_TOKENIZERS, usable_cores() // _CORES_PER_TOKENIZER))


def served_as(pipeline: Pipeline, device: str | None, tokenizers: int | None, **engine: Any) -> Pipeline:
    """A pipeline with the settings that were given; None leaves one as it is.

    Raises:
        RoseError: a setting has a value that it cannot have.
    """
    given = {name: value for name, value in engine.items() if value is not None}
    changed = replace(pipeline, engine=replace(pipeline.engine, **given))
    if device is not None:
        changed = replace(changed, devices=parse_devices(device))
    return changed if tokenizers is None else replace(changed, tokenizers=tokenizers)


def chosen(store: Repository, checkpoints: list[Path], names: list[str]) -> list[Pipeline]:
    """What to serve: the checkpoints, or else what the repository holds, or else the default.

    Raises:
        typer.BadParameter: more names than checkpoints.
        CheckpointError: the repository cannot be read.
    """
    if len(names) > len(checkpoints):
        raise typer.BadParameter("more --name than --checkpoint")
    tokenizers = default_tokenizers()
    if checkpoints:
        folders = [folder.resolve() for folder in checkpoints]
        models = names + [folder.name for folder in folders[len(names) :]]
        return [Pipeline(m, str(folder), tokenizers=tokenizers) for m, folder in zip(models, folders, strict=True)]
    return store.pipelines() or [Pipeline(tokenizers=tokenizers)]
