"""`rose inspect`: what a checkpoint's files ask for, before it is served."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rose_backend.errors import RoseError
from rose_client.cli.console import errors_to_exit, out
from rose_client.cli.pipelines import MatryoshkaOption
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.inspection import inspection
from rose_ensemble.matryoshka import check_setting


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face or sentence-transformers folder.")],
    matryoshka: MatryoshkaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print what serving a checkpoint would do, and every file that says so. Status 1 if it cannot be served.

    Where weights and tokenizer are not there yet, what needs them is left open.
    """
    from rose_backend.models.registry import served_types  # torch takes seconds that no other command should wait
    from rose_ensemble.rehearsal import rehearse

    with errors_to_exit(RoseError):
        folder = checkpoint.resolve()
        setting = matryoshka or "auto"
        check_setting(setting)
        found = read_checkpoint(folder)
        told = dataclasses.replace(found, matryoshka=found.matryoshka.told(setting))
        values = inspection(folder, told, served_types())
        if values["served"]:
            values["left_open"] = rehearse(told)
    if as_json:
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        for name, text in _lines(values):
            out.print(f"[bold]{name:<14}[/]", end="")
            out.print(text, markup=False)
    if not values["served"]:
        raise typer.Exit(1)


def _lines(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and texts of the table."""
    yield "architecture", values["architecture"] + ("" if values["served"] else ": not served")
    default = values["default_prompt_name"]
    for name, text in values["prompts"].items():
        yield "prompt", f"{name}: {text!r}" + (" (where a request names none)" if name == default else "")
    if values["lower_case"]:
        yield "texts", "lower-cased"
    yield "max length", f"{values['max_length']} tokens, special tokens included"
    yield from _vector_lines(values) if values["scoring"] is None else _score_lines(values["scoring"])
    stored = values["dtype"]["stored"]
    yield "dtype", values["dtype"]["computed"] + (f"; stored as {stored}" if stored else "")
    for missing in values.get("left_open", ()):
        yield "missing", f"{missing}: what needs it is left open"
    yield "read from", ", ".join(values["files"])


def _score_lines(scoring: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a reranker has instead of a vector."""
    yield "scores", f"pairs of a query and a document, as {scoring['architecture']}"
    if scoring["instruction"] is None:
        yield "pairs", "second text of type 1" if scoring["token_types"] else "without token types"
        yield "truncation", scoring["truncation"]
    else:
        yield "pairs", "in Qwen3-Reranker's template; of a pair that is too long the end of its document is cut"
        yield "instruction", f"{scoring['instruction']!r} (where a request names none)"
    rows = "" if scoring["token_ids"] is None else f" {scoring['token_ids']}"
    yield "head", f"{scoring['head']}{rows} on {scoring['pooling']}"
    yield "activation", scoring["activation"]


def _vector_lines(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """From token vectors to a vector."""
    yield "pooling", " + ".join(values["pooling"]) + ("" if values["include_prompt"] else ", without a prompt's tokens")
    for dense in values["dense"]:
        bias = "with bias" if dense["bias"] else "no bias"
        residual = ", plus its input" if dense["residual"] else ""
        sizes = f"{dense['in_features']} -> {dense['out_features']}"
        yield "projection", f"{sizes}, {bias}, {dense['activation']}{residual} ({dense['folder']})"
    yield "normalize", "to unit length" if values["normalize"] else "no"
    yield "vector", f"{values['dim']} elements"
    dimensions = values["dimensions"]
    origin = f" ({dimensions['known_from']})" if dimensions["known_from"] else ""
    yield "dimensions", (dimensions["allowed"] or "whole vectors only") + origin
    if dimensions["default"] != values["dim"]:
        yield "", f"{dimensions['default']} where a request names none"
    if values["further_heads"]:
        yield "heads", " and ".join(values["further_heads"])
    codes = values["codes"]
    missing = "" if codes["int8"] else "; no int8 until `rose calibrate` has measured ranges"
    yield "codes", f"int8 and binary as in {codes['rules']}{missing}"
    yield "similarity", values["similarity"]
