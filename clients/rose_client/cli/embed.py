"""`rose embed`: vectors of a few texts, as JSON lines."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rose_client.cli.console import errors_to_exit, fail
from rose_client.client import RoseClient
from rose_client.errors import RequestError


def embed(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    url: Annotated[str, typer.Option(help="host:port of the server's gRPC endpoint.")] = "localhost:8001",
    model: Annotated[str, typer.Option(help="Name of the ensemble.")] = "embed",
    timeout: Annotated[float, typer.Option(help="Seconds the call may take.")] = 60.0,
) -> None:
    """Embed texts on a running server; one JSON object a line: text, tokens, embedding."""
    wanted = texts or [line.rstrip("\n") for line in sys.stdin]
    if not wanted:
        fail("no texts: give them as arguments or on standard input")
    with errors_to_exit(RequestError), RoseClient(url, model, timeout) as client:
        answer = client.embed_with_counts(wanted)
    for text, tokens, vector in zip(wanted, answer.token_counts, answer.vectors, strict=True):
        record = {"text": text, "tokens": int(tokens), "embedding": [round(float(x), 8) for x in vector]}
        typer.echo(json.dumps(record, ensure_ascii=False))
