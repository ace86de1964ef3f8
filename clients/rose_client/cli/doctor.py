"""`rose doctor`: whether this machine can serve, and how to mend what is in the way."""

from __future__ import annotations

from typing import Annotated

import typer

from rose_client.cli.console import out
from rose_ensemble.doctor import Level, examine

_MARKS = {Level.OK: "[green]ok[/]  ", Level.WARNING: "[yellow]warn[/]", Level.PROBLEM: "[red]FAIL[/]"}


def doctor(
    host: Annotated[str, typer.Option(help="Address a server would listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option()] = 8000,
    grpc_port: Annotated[int, typer.Option()] = 8001,
    metrics_port: Annotated[int, typer.Option()] = 8002,
) -> None:
    """Check Python, numpy, server, weights, GPU, shared memory and ports. Status 1 if serving would fail."""
    findings = examine(host, (http_port, grpc_port, metrics_port))
    for finding in findings:
        out.print(f"{_MARKS[finding.level]} {finding.subject}: ", end="")
        out.print(finding.text, markup=False)
        if finding.remedy:
            out.print(f"       -> {finding.remedy}", markup=False)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(1)
