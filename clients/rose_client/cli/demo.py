"""`rose demo`: a server on free ports, ten sentences through it, the similarities as a table."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from rose_backend.errors import RoseError
from rose_client.cli.console import err, errors_to_exit, out, sigterm_unwinds
from rose_client.client import RoseClient
from rose_client.errors import RequestError
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server

_SENTENCES = (
    "The ferry leaves the harbour at dawn.",
    "Boats sail from the port early in the morning.",
    "Sourdough needs a lively starter.",
    "Bake the bread until the crust is dark.",
    "The central bank raised interest rates.",
    "Borrowing money became more expensive.",
    "Our cat sleeps on the warm radiator.",
    "A kitten naps by the heater.",
    "The orchestra tuned before the concert.",
    "Musicians rehearsed the symphony.",
)
_SHADES = ((0.6, "bold green"), (0.4, "green"), (0.2, "yellow"))


def demo() -> None:
    """Show the whole way once: start a server, embed ten sentences over gRPC, print who resembles whom."""
    with errors_to_exit(RoseError, RequestError), sigterm_unwinds(), tempfile.TemporaryDirectory() as scratch:
        store = Repository(Path(scratch))
        pipeline = Pipeline()
        store.add(pipeline)
        log = (Path(scratch) / "tritonserver.log").open("w+b")
        server = ServerProcess(find_server(), store.folder, [pipeline.name], Endpoints.free("127.0.0.1"), log)
        try:
            with server:
                with err.status("starting tritonserver with all-MiniLM-L6-v2"):
                    began = time.perf_counter()
                    server.wait_until_ready()
                out.print(f"tritonserver ready after {time.perf_counter() - began:.1f} s", style="green")
                with RoseClient(server.endpoints.grpc) as client:
                    client.embed(_SENTENCES)  # the first call pays for first-use costs
                    began = time.perf_counter()
                    vectors = client.embed(_SENTENCES)
                    milliseconds = (time.perf_counter() - began) * 1e3
        except RoseError:
            log.seek(0)
            err.print(log.read().decode(errors="replace"), markup=False)
            raise
    out.print(f"{len(vectors)} sentences -> {vectors.shape[1]}-dimensional vectors in {milliseconds:.0f} ms\n")
    _print_similarities(vectors @ vectors.T)


def _print_similarities(similarities: npt.NDArray[np.float32]) -> None:
    closest = (similarities - 2 * np.eye(len(similarities))).argmax(axis=1)
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("", "sentence", "closest", "cosine"):
        table.add_column(header, no_wrap=True, justify="left" if header == "sentence" else "right")
    for index, (sentence, other) in enumerate(zip(_SENTENCES, closest, strict=True)):
        table.add_row(str(index), sentence, str(other), _shaded(similarities[index, other]))
    out.print(table)
    matrix = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("", *map(str, range(len(_SENTENCES)))):
        matrix.add_column(header, no_wrap=True, justify="right", width=5 if header else 2)
    for index, row in enumerate(similarities):
        cells = (_shaded(value) if other != index else "[dim]·[/]" for other, value in enumerate(row))
        matrix.add_row(str(index), *cells)
    out.print(matrix)


def _shaded(value: float) -> str:
    style = next((style for least, style in _SHADES if value >= least), "dim")
    return f"[{style}]{value:.2f}[/]"
