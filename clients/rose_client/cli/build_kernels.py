"""`rose build-kernels`: compile FlashInfer's kernels ahead of time, for images and hosts without a compiler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from rose_backend.attention.flashinfer_build import FlashInferBuildError, KernelSpec, build, install
from rose_client.cli.console import err, errors_to_exit, out

_BACKENDS: tuple[Literal["fa2", "fa3"], ...] = ("fa2", "fa3")


def build_kernels(
    arch: Annotated[str, typer.Option(help="Compute capabilities separated by a space, e.g. '8.0 9.0a'.")] = "9.0a",
    head_dim: Annotated[list[int] | None, typer.Option(help="Head sizes; default 64 and 128.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Leave the kernels here as well, to be installed on another host.")
    ] = None,
    install_from: Annotated[Path | None, typer.Option(help="Install what an earlier call left there.")] = None,
) -> None:
    """Build the ragged attention kernels (minutes each, no GPU needed) and install them into FlashInfer."""
    with errors_to_exit(FlashInferBuildError, ValueError):
        if install_from is None:
            with tempfile.TemporaryDirectory() as scratch:
                folder = output or Path(scratch)
                backends = _BACKENDS if "9.0a" in arch.split() else _BACKENDS[:1]  # FA3 is for Hopper alone
                specs = [KernelSpec(backend, size) for backend in backends for size in head_dim or (64, 128)]
                build(specs, folder, arch, progress=lambda line: err.print(line, markup=False))
                installed = install(folder)
        else:
            installed = install(install_from)
    for library in installed:
        out.print(str(library), markup=False)
