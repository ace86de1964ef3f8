"""Put kernels that were built, here or elsewhere, where the installed FlashInfer loads them from."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rose_backend.attention.flashinfer_kernels import (
    DISTRIBUTION,
    STAMP,
    FlashInferKernelError,
    aot_folder,
    built_from,
    installed_version,
)


class InstallError(FlashInferKernelError):
    """Built kernels do not fit the installed FlashInfer, or its folder cannot be written."""


def libraries_in(output: Path) -> list[Path]:
    """The kernels that `build` left in a folder.

    Raises:
        InstallError: if there is none.
    """
    libraries = sorted(output.glob("*/*.so"))
    if not libraries:
        raise InstallError(f"{output} holds no kernel: expected NAME/NAME.so, as build() writes them")
    return libraries


def require_writable() -> None:
    """Refuse before minutes of compiling what `install` would refuse after them.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
        InstallError: if its folder cannot be written.
    """
    folder = aot_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_writable(folder, error) from error


def install(libraries: Sequence[Path]) -> list[Path]:
    """Copy kernels to where the installed FlashInfer loads them from.

    Args:
        libraries: `<name>/<name>.so`, each beside its stamp, as `build` writes them.

    Returns:
        The installed libraries. A server that is running keeps what it has loaded.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
        InstallError: if one was built from another version of FlashInfer, or the folder cannot be written.
    """
    folder, version = aot_folder(), installed_version()
    for library in libraries:
        origin = built_from(library.parent) or "(unknown)"
        if origin != version:
            raise InstallError(
                f"{library.parent.name} was built from {DISTRIBUTION} {origin}, and {version} is "
                "installed: build it again, or install that version"
            )
    installed = []
    for library in libraries:
        target = folder / library.parent.name / library.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for source in (library, library.with_name(STAMP)):
                _replace(source, target.with_name(source.name))
        except OSError as error:
            raise _not_writable(target, error) from error
        installed.append(target)
    return installed


def _replace(source: Path, target: Path) -> None:
    """Copy so that a process which has the old file mapped keeps it."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _not_writable(path: Path, error: OSError) -> InstallError:
    return InstallError(f"cannot write {path}: {error}; install as the owner of that folder")
