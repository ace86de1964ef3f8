"""`rose embed`: vectors of a file's texts, or of a few given as arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rose_client.cli.console import err, errors_to_exit, fail, out
from rose_client.client import RoseClient
from rose_client.errors import RequestError
from rose_client.files.errors import FileFormatError
from rose_client.files.sinks import JsonLinesSink, Sink, open_vectors
from rose_client.files.sources import DEFAULT_FIELD, SUFFIXES, TextSource, open_texts
from rose_client.wire import EmbedOptions

UrlsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--url", help="host:port of a server's gRPC endpoint; several share the work.", show_default="localhost:8001"
    ),
]
ModelOption = Annotated[str, typer.Option(help="Name of the ensemble.")]


def embed(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | TEXT...]",
            help="A .txt (a text a line), .jsonl, .csv or .parquet file, or texts; default: lines of standard input.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .npy, .parquet or .jsonl file. Default: JSON lines on standard output."),
    ] = None,
    field: Annotated[
        str, typer.Option("--field", "--column", help="What holds the text, in a .jsonl, .csv or .parquet file.")
    ] = DEFAULT_FIELD,
    input_type: Annotated[
        str | None, typer.Option(help="query or document: the checkpoint's prompt for it goes in front.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="How many elements of each vector are wanted, where the model may be cut.")
    ] = None,
    url: UrlsOption = None,
    model: ModelOption = "embed",
    timeout: Annotated[float, typer.Option(help="Seconds that each request may take, retries included.")] = 60.0,
) -> None:
    """Embed a file, or a few texts, on running servers: text, tokens and embedding of each, in the order given.

    What is read is sent and written block by block, so a file may be of any size.
    """
    options: EmbedOptions = {}
    if input_type is not None:
        options["input_type"] = input_type
    if dimensions is not None:
        options["dimensions"] = dimensions
    with errors_to_exit(RequestError, FileFormatError, OSError):
        source = _source(texts or [], field)
        if output is not None and [str(output)] == texts:
            fail(f"--output {output} is the file that is read")
        with _sink(output) as sink, RoseClient(url or "localhost:8001", model, timeout) as client:
            shown = err.is_terminal and output is not None
            done = 0
            for block in client.embed_many(source.texts, progress=shown, total=source.total, **options):
                sink.write(block)
                done += len(block.texts)
            if not done:
                fail("no texts: give a file, texts as arguments, or lines on standard input")
    if output is not None:
        out.print(f"{done} texts -> {output}", markup=False)


def _source(arguments: list[str], field: str) -> TextSource:
    if not arguments:
        return TextSource(line.rstrip("\n") for line in sys.stdin)
    files = [argument for argument in arguments if _is_file(argument)]
    if not files:
        return TextSource(iter(arguments), len(arguments))
    if len(arguments) > 1:
        raise FileFormatError(f"{files[0]} is a file: give one file and nothing else, or texts")
    path = Path(files[0])
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file (to embed this as a text, give it on standard input)")
    return open_texts(path, field)


def _is_file(argument: str) -> bool:
    """A name that a file has, or could have only by mistake not have."""
    looks = Path(argument).suffix.lower() in SUFFIXES and not any(map(str.isspace, argument))
    try:
        return looks or Path(argument).is_file()
    except OSError:  # too long for a name
        return False


@contextmanager
def _sink(output: Path | None) -> Iterator[Sink]:
    if output is None:
        yield JsonLinesSink(sys.stdout)
        return
    with open_vectors(output) as sink:
        yield sink
