"""What compiling FlashInfer's kernels takes: nvcc, a C++ compiler, ninja, CUDA's headers, libraries to link with."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_backend.attention.flashinfer_kernels import FlashInferKernelError

_HEADERS = {"cuda_runtime.h": "nvidia-cuda-runtime", "curand.h": "nvidia-curand"}
_OUTPUT_TAIL = 4000  # characters of a program's output in an error message


class ToolchainError(FlashInferKernelError):
    """A program that the build calls (nvcc, ninja, a C++ compiler) is not on this machine."""


class HeadersNotFoundError(FlashInferKernelError):
    """A CUDA header is neither in the toolkit nor in an installed NVIDIA wheel."""


class CompileError(FlashInferKernelError):
    """The compiler or the linker failed; the message ends with what it printed."""


@dataclass(frozen=True)
class Toolchain:
    """The CUDA compiler and what it lacks.

    Attributes:
        cuda_home: folder that holds `bin/nvcc`.
        cuda_major: major version of the toolkit.
        include_dirs: folders of headers that the toolkit itself does not have.
    """

    cuda_home: Path
    cuda_major: int
    include_dirs: tuple[Path, ...]


def find_toolchain() -> Toolchain:
    """Find nvcc, a C++ compiler, ninja and the CUDA headers.

    nvcc is taken from CUDA_HOME or CUDA_PATH, the PATH, /usr/local/cuda, or the wheel `nvidia-cuda-nvcc`, in
    that order. Headers are taken from beside it, and what it lacks from installed NVIDIA wheels.

    Raises:
        ToolchainError: if a program is missing, or CUDA_HOME names a folder without one.
        HeadersNotFoundError: if a header is missing.
    """
    wheels = _wheel_folders()
    cuda_home = _cuda_home(wheels)
    if shutil.which(_cxx()[0]) is None:
        raise ToolchainError(f"no C++ compiler {_cxx()[0]!r}: install g++, or name one in CXX")
    if shutil.which("ninja", path=search_path()) is None:
        raise ToolchainError("no ninja: pip install ninja")
    major = _cuda_major(cuda_home / "bin" / "nvcc")
    return Toolchain(cuda_home, major, _missing_include_dirs(cuda_home, major, wheels))


def make_placeholders(folder: Path, toolchain: Toolchain) -> Path:
    """Make empty stand-ins for the CUDA libraries that the link step names and the toolkit does not have.

    They carry the real sonames, so that the kernel asks for the real libraries when it is loaded.

    Args:
        folder: where to put them; made if it does not exist.
        toolchain: its libraries are left alone.

    Returns:
        `folder`, for the linker's search path.

    Raises:
        CompileError: if the C++ compiler cannot link one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = [toolchain.cuda_home / "lib64", toolchain.cuda_home / "lib64" / "stubs"]
    sonames = {"libcudart.so": f"libcudart.so.{toolchain.cuda_major}", "libcuda.so": "libcuda.so.1"}
    for library, soname in sonames.items():
        if any((place / library).exists() for place in present):
            continue
        link = [*_cxx(), "-shared", "-nostdlib", "-x", "c", os.devnull]
        run_program([*link, "-o", str(folder / library), f"-Wl,-soname,{soname}"], os.environ, library)
    return folder


def search_path() -> str:
    """PATH with this interpreter's scripts, where pip puts ninja, in front."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def run_program(command: Sequence[str], environment: Mapping[str, str], what: str) -> None:
    """Run a program to its end; its output appears only in the error. An interrupt ends what it started, too.

    Raises:
        CompileError: if it fails; the message starts with `what`.
    """
    with subprocess.Popen(  # noqa: S603  (the command is ours, with no shell)
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            # Its compilers would go on for minutes. Ninja passes this signal on to them, unlike SIGKILL.
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode != 0:
        raise CompileError(f"{what}: exit status {process.returncode}\n{printed[-_OUTPUT_TAIL:]}")


def _cuda_home(wheels: Sequence[Path]) -> Path:
    """Folder whose bin/nvcc is the compiler to use."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        if (Path(named) / "bin" / "nvcc").is_file():
            return Path(named)
        raise ToolchainError(f"CUDA_HOME is {named}, which has no bin/nvcc: unset it, or name a CUDA toolkit")
    on_path = shutil.which("nvcc")
    found = [Path(on_path).resolve().parent.parent] if on_path else []
    for home in (*found, Path("/usr/local/cuda"), *wheels):
        # a launcher script elsewhere on the PATH has no compiler beside it
        if (home / "bin" / "nvcc").is_file() and (home / "nvvm").is_dir():
            return home
    raise ToolchainError(
        "no nvcc: install the CUDA toolkit and set CUDA_HOME, or "
        "pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt"
    )


def _cuda_major(nvcc: Path) -> int:
    """Major version of the toolkit, from `nvcc --version`."""
    try:
        done = subprocess.run(  # noqa: S603  (a file we found, with no shell)
            [str(nvcc), "--version"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ToolchainError(f"{nvcc} does not run: {error}") from error
    match = re.search(r"release (\d+)\.\d+", done.stdout)
    if match is None:
        raise ToolchainError(f"{nvcc} --version names no release: {done.stdout + done.stderr!r}")
    return int(match.group(1))


def _wheel_folders() -> list[Path]:
    """Folders of installed NVIDIA wheels: `nvidia/cu13` since CUDA 13, `nvidia/curand` and others before."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    folders = [folder for root in roots for folder in Path(root).iterdir()]
    return sorted(folder for folder in folders if (folder / "include").is_dir())


def _missing_include_dirs(cuda_home: Path, major: int, wheels: Sequence[Path]) -> tuple[Path, ...]:
    """Wheels' folders for the headers that the toolkit lacks, each once, its own CUDA version first."""
    ordered = sorted(wheels, key=lambda folder: folder.name != f"cu{major}")
    folders: list[Path] = []
    for header, package in _HEADERS.items():
        if (cuda_home / "include" / header).is_file():
            continue
        holders = [folder / "include" for folder in ordered if (folder / "include" / header).is_file()]
        if not holders:
            wheel = package if major >= 13 else f"{package}-cu{major}"
            raise HeadersNotFoundError(f"no {header} in {cuda_home / 'include'}: pip install {wheel}")
        if holders[0] not in folders:
            folders.append(holders[0])
    return tuple(folders)


def _cxx() -> list[str]:
    """The C++ compiler that FlashInfer links with, as an argument list."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]
