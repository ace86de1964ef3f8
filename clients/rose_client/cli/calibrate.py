"""`rose calibrate`: the ranges that int8 codes of a checkpoint's vectors need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose_backend.errors import RoseError
from rose_client.cli.console import errors_to_exit, out


def calibrate(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face or sentence-transformers folder.")],
    file: Annotated[Path, typer.Argument(help="Texts in UTF-8, one a line, like those to be embedded.")],
    dimensions: Annotated[
        str, typer.Option(help="Lengths, e.g. 128,256, that requests cut vectors to, besides those its files list.")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, or e.g. cuda:0.")] = "auto",
) -> None:
    """Embed the texts and store each element's range in the checkpoint's folder, for `outputs=int8`."""
    from rose_ensemble.calibrate import calibrate as measured  # torch takes seconds that no other command should wait
    from rose_ensemble.devices import resolve_device
    from rose_ensemble.int8_ranges import write_ranges

    try:
        sizes = tuple(int(size) for size in dimensions.split(",") if size)
        texts = file.read_text(encoding="utf-8").splitlines()
    except (ValueError, OSError) as cause:
        raise typer.BadParameter(str(cause)) from None
    with errors_to_exit(RoseError, OSError):
        folder = checkpoint.resolve()
        path = write_ranges(folder, measured(folder, texts, resolve_device(device), sizes))
    out.print(f"{len(texts)} texts: {path}", markup=False)
