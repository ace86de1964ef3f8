"""A progress bar on the standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int | None, *, shown: bool, description: str = "embedding") -> Iterator[Callable[[int], None]]:
    """Yield what is told of every few texts done; the bar ends with the block.

    Args:
        total: texts in all; None where nobody knows.
        shown: without, nothing is written at all.
        description: what is being done.
    """
    if not shown:
        yield lambda _: None
        return
    # Imported late: only whoever wants to see something waits for rich.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, rate="")

        def advance(texts: int) -> None:
            bar.advance(task, texts)
            entry = bar.tasks[0]
            if entry.elapsed:
                bar.update(task, rate=f"{entry.completed / entry.elapsed:,.0f} texts/s")

        yield advance


def known_total(texts: object, total: int | None) -> int | None:
    """How many texts there are, if the caller or their container tells."""
    if total is not None:
        return total
    try:
        return len(texts)  # type: ignore[arg-type]
    except TypeError:
        return None
