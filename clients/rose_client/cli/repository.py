"""`rose repository`: the pipelines a server loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose_backend.errors import RoseError
from rose_client.cli.console import errors_to_exit
from rose_client.cli.pipelines import (
    AttentionOption,
    BudgetOption,
    DeviceOption,
    DtypeOption,
    LanesOption,
    MatryoshkaOption,
    QueuedRequestsOption,
    QueuedTokensOption,
    TokenizersOption,
    default_tokenizers,
    served_as,
)
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository, default_repository

app = typer.Typer(help="The pipelines a server loads.", no_args_is_help=True)

RepositoryOption = Annotated[
    Path | None, typer.Option("--repository", help="Folder; by default under the user's state folder.")
]


def open_repository(folder: Path | None) -> Repository:
    """The repository in `folder`, or in the default place."""
    return Repository(folder or default_repository())


@app.command("add")
def add(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face or sentence-transformers folder.")],
    name: Annotated[str | None, typer.Option(help="Model name; by default the folder's.")] = None,
    repository: RepositoryOption = None,
    device: DeviceOption = None,
    tokenizers: TokenizersOption = None,
    dtype: DtypeOption = None,
    attention: AttentionOption = None,
    token_budget: BudgetOption = None,
    max_queued_tokens: QueuedTokensOption = None,
    max_queued_requests: QueuedRequestsOption = None,
    lanes: LanesOption = None,
    matryoshka: MatryoshkaOption = None,
) -> None:
    """Write the three model folders of a checkpoint."""
    with errors_to_exit(RoseError):
        folder = checkpoint.resolve()
        pipeline = served_as(
            Pipeline(name or folder.name, str(folder), tokenizers=default_tokenizers()),
            device,
            tokenizers,
            dtype=dtype,
            attention=attention,
            token_budget=token_budget,
            max_queued_tokens=max_queued_tokens,
            max_queued_requests=max_queued_requests,
            lanes=lanes,
            matryoshka=matryoshka,
        )
        store = open_repository(repository)
        store.add(pipeline)
    typer.echo(f"added {pipeline.name}: {', '.join(pipeline.configs())} in {store.folder}")


@app.command("list")
def list_pipelines(repository: RepositoryOption = None) -> None:
    """Print each pipeline: name, devices, checkpoint."""
    with errors_to_exit(RoseError):
        pipelines = open_repository(repository).pipelines()
    for pipeline in pipelines:
        typer.echo(f"{pipeline.name}\t{','.join(pipeline.devices)}\t{pipeline.checkpoint}")


@app.command("remove")
def remove(name: Annotated[str, typer.Argument()], repository: RepositoryOption = None) -> None:
    """Delete a pipeline's model folders; the checkpoint stays."""
    with errors_to_exit(RoseError):
        open_repository(repository).remove(name)
    typer.echo(f"removed {name}")
