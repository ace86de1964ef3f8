"""`rose build-kernels`: compile FlashInfer's kernels ahead of time, for images and hosts without a compiler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from rose_backend.attention.flashinfer_build import build
from rose_backend.attention.flashinfer_install import install, libraries_in, require_writable
from rose_backend.attention.flashinfer_kernels import FlashInferKernelError, KernelSpec
from rose_client.cli.console import err, errors_to_exit, out, sigterm_unwinds

_BACKENDS: tuple[Literal["fa2", "fa3"], ...] = ("fa2", "fa3")


def build_kernels(
    arch: Annotated[str, typer.Option(help="Compute capabilities separated by a space, e.g. '8.0 9.0a'.")] = "9.0a",
    head_dim: Annotated[list[int] | None, typer.Option(help="Head sizes; default 64 and 128.")] = None,
    sliding_window: Annotated[
        bool, typer.Option("--sliding-window", help="Kernels for a causal sliding window, instead of the plain ones.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Leave the kernels here as well, to be installed on another host.")
    ] = None,
    install_from: Annotated[Path | None, typer.Option(help="Install what an earlier call left there.")] = None,
) -> None:
    """Build the ragged attention kernels (5 to 40 minutes each on two cores, no GPU needed) and install them."""
    with errors_to_exit(FlashInferKernelError, ValueError), sigterm_unwinds():
        if install_from is None:
            backends = _BACKENDS if "9.0a" in arch.split() else _BACKENDS[:1]  # FA3 is for Hopper alone
            sizes = head_dim or (64, 128)
            specs = [KernelSpec(name, size, sliding_window=sliding_window) for name in backends for size in sizes]
            installed = _build_and_install(specs, arch, output)
        else:
            installed = install(libraries_in(install_from))
    for library in installed:
        out.print(str(library), markup=False)


def _build_and_install(specs: list[KernelSpec], arch: str, output: Path | None) -> list[Path]:
    """Build into `output`, or into a folder that is gone afterwards, and install that."""
    with tempfile.TemporaryDirectory() as scratch:
        if output is None:
            require_writable()  # with nowhere else to leave them, the kernels would be lost
        built = build(specs, output or Path(scratch), arch, progress=lambda line: err.print(line, markup=False))
        return install([kernel.path for kernel in built])
