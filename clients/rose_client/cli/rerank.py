"""`rose rerank`: documents in the order of their relevance to a query, as JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rose_client.cli.console import errors_to_exit, fail
from rose_client.client import RoseClient
from rose_client.errors import RequestError


def rerank(
    query: Annotated[str, typer.Argument(help="What the documents are ranked for.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="UTF-8 documents; without any, lines of standard input.")
    ] = None,
    url: Annotated[str, typer.Option(help="host:port of the server's gRPC endpoint.")] = "localhost:8001",
    model: Annotated[str, typer.Option(help="Name of the ensemble.")] = "rerank",
    top_n: Annotated[int | None, typer.Option(min=1, help="How many to print; by default all.")] = None,
    instruction: Annotated[str | None, typer.Option(help="What counts as relevant, for models that are told.")] = None,
    raw_scores: Annotated[bool, typer.Option("--raw-scores", help="Scores that are the logits.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds the call may take.")] = 60.0,
) -> None:
    """Rank documents on a running server, best first; one JSON object a line: document, index, score, logit."""
    if files:
        with errors_to_exit(OSError, UnicodeDecodeError):
            documents = [path.read_text(encoding="utf-8") for path in files]
        names = [str(path) for path in files]
    else:
        names = documents = [line.rstrip("\n") for line in sys.stdin]
    if not documents:
        fail("no documents: give files as arguments, or lines on standard input")
    with errors_to_exit(RequestError), RoseClient(url, model, timeout) as client:
        answer = client.rerank(query, documents, top_n, instruction, raw_scores)
    for entry in answer:
        record = {"document": names[entry.index], "index": entry.index, "score": entry.score, "logit": entry.logit}
        typer.echo(json.dumps(record, ensure_ascii=False))
