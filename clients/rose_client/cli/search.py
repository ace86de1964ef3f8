"""`rose search`: the paragraphs of a folder that are closest to a query. A demonstration: no index is kept."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, tee
from pathlib import Path
from typing import Annotated

import typer

from rose_client.cli.console import err, errors_to_exit, fail, out
from rose_client.cli.embed import ModelOption, UrlsOption
from rose_client.client import RoseClient
from rose_client.errors import RequestError

_SUFFIXES = (".md", ".rst", ".txt")


@dataclass(frozen=True)
class Paragraph:
    """Lines of a file between blank ones.

    Attributes:
        file: where it is.
        line: number of its first line, from 1.
        text: its lines as one.
    """

    file: Path
    line: int
    text: str


def search(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Its .txt, .md and .rst files.")],
    query: Annotated[str, typer.Argument(help="What is looked for.")],
    top_n: Annotated[int, typer.Option(min=1, help="How many paragraphs to print.")] = 5,
    url: UrlsOption = None,
    model: ModelOption = "embed",
    timeout: Annotated[float, typer.Option(help="Seconds that each request may take, retries included.")] = 60.0,
) -> None:
    """Embed the paragraphs of a small folder's text files and print those closest to a query, with their cosines.

    Everything is embedded anew at each call: what is searched often belongs into a vector database.
    """
    best: list[tuple[float, int, Paragraph]] = []  # a heap, its worst first; of equal ones the earlier stays
    order = count()
    with (
        errors_to_exit(RequestError, OSError, UnicodeDecodeError),
        RoseClient(url or "localhost:8001", model, timeout) as client,
    ):
        [wanted] = client.embed([query], input_type="query", normalize=True)
        found, asked = tee(paragraphs(folder))
        texts = (paragraph.text for paragraph in asked)
        for block in client.embed_many(texts, progress=err.is_terminal, input_type="document", normalize=True):
            for score in block.embeddings.vectors @ wanted:
                heapq.heappush(best, (float(score), -next(order), next(found)))
                if len(best) > top_n:
                    heapq.heappop(best)
    if not best:
        fail(f"{folder} holds no text: looked for {', '.join(_SUFFIXES)}")
    for score, _, paragraph in sorted(best, reverse=True):
        out.print(f"{score:.3f}  {paragraph.file.relative_to(folder)}:{paragraph.line}", markup=False)
        out.print(f"       {paragraph.text}", markup=False)


def paragraphs(folder: Path) -> Iterator[Paragraph]:
    """What stands between blank lines in a folder's text files, in the order of their names.

    Raises:
        OSError: a file cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    for file in sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file()):
        begin, lines = 0, list[str]()
        for number, line in enumerate([*file.read_text(encoding="utf-8").splitlines(), ""], 1):
            if line.strip():
                begin = begin or number
                lines.append(line.strip())
            elif lines:
                yield Paragraph(file, begin, " ".join(lines))
                begin, lines = 0, []
