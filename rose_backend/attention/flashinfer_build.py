"""Build FlashInfer's ragged attention kernels ahead of time, for servers that have no compiler.

FlashInfer compiles a kernel the first time a batch needs it, which stalls that batch for minutes. Kernels
that lie in its ahead-of-time folder load at once. No GPU is needed to build them:

    build([KernelSpec("fa3", head_dim=128)], Path("kernels"), cuda_arch_list="9.0a")  # where nvcc is
    install(Path("kernels"))  # on the server, under the same FlashInfer version
    missing([KernelSpec("fa3", head_dim=128)])  # [] once they are there
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Progress = Callable[[str], None]
"""Receives one line of text before and after each kernel."""

_LOGGER = logging.getLogger(__name__)

_DISTRIBUTION = "flashinfer-python"
_HEAD_DIMS = (64, 128, 256)
_MEMORY_PER_JOB = 4 << 30  # bytes; the largest compiler process was seen at 3.3 GiB
_STAMP = "build.json"  # beside each kernel: the FlashInfer version it was compiled from
_ARCH_LIST = re.compile(r"\d+\.\d+[af]?( \d+\.\d+[af]?)*")
_HEADERS = {"cuda_runtime.h": "nvidia-cuda-runtime", "curand.h": "nvidia-curand"}
_OUTPUT_TAIL = 4000  # characters of compiler output in an error message

# Runs in a process of its own: FlashInfer reads its settings from the environment when it is imported.
_COMPILE = """
import json, shutil, sys
import torch
from flashinfer.jit.attention import gen_batch_prefill_module
request = json.loads(sys.argv[1])
dtype, head_dim = getattr(torch, request["dtype"]), request["head_dim"]
dtypes, shape = (dtype, dtype, dtype, torch.int32), (head_dim, head_dim)
module = gen_batch_prefill_module(
    request["backend"], *dtypes, *shape, 0, request["sliding_window"], False, False
)
module.build(verbose=False)
shutil.copyfile(module.jit_library_path, request["target"])
"""


class FlashInferBuildError(RuntimeError):
    """Base of what can go wrong here; the message says what to install or to change."""


class FlashInferNotInstalledError(FlashInferBuildError):
    """FlashInfer, or a package that it needs, cannot be imported."""


class ToolchainError(FlashInferBuildError):
    """A program that the build calls (nvcc, ninja, a C++ compiler) is not on this machine."""


class HeadersNotFoundError(FlashInferBuildError):
    """A CUDA header is neither in the toolkit nor in an installed NVIDIA wheel."""


class CompileError(FlashInferBuildError):
    """The compiler or the linker failed; the message ends with what it printed."""


class InstallError(FlashInferBuildError):
    """Built kernels do not fit the installed FlashInfer, or its folder cannot be written."""


@dataclass(frozen=True)
class KernelSpec:
    """One ragged attention kernel; it serves causal and bidirectional masks and any number of heads.

    Attributes:
        backend: `fa2` (compute capability 8.0 and later) or `fa3` (Hopper, 9.0a, alone).
        head_dim: elements in a query, key and value head: 64, 128 or 256.
        dtype: of queries, keys, values and output. The batch's offsets are int32.
        sliding_window: whether batches set a left window; that is a kernel of its own.

    Raises:
        ValueError: for a field outside its range.
    """

    backend: Literal["fa2", "fa3"]
    head_dim: int
    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    sliding_window: bool = False

    def __post_init__(self) -> None:
        """Refuse what FlashInfer has no kernel for."""
        if self.backend not in ("fa2", "fa3"):
            raise ValueError(f"backend is 'fa2' or 'fa3', not {self.backend!r}")
        if self.head_dim not in _HEAD_DIMS:
            raise ValueError(f"head_dim is one of {_HEAD_DIMS}, not {self.head_dim}")
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError(f"dtype is 'bfloat16' or 'float16', not {self.dtype!r}")

    def __str__(self) -> str:
        window = ", sliding window" if self.sliding_window else ""
        return f"{self.backend}, head_dim {self.head_dim}, {self.dtype}{window}"


@dataclass(frozen=True)
class BuiltKernel:
    """A compiled kernel.

    Attributes:
        spec: what was asked for.
        name: FlashInfer's name of the module.
        path: the shared library, `<output>/<name>/<name>.so`.
        size_bytes: size of the library.
        seconds: wall time of the build.
    """

    spec: KernelSpec
    name: str
    path: Path
    size_bytes: int
    seconds: float


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


def kernel_name(spec: KernelSpec) -> str:
    """Name of the module that FlashInfer's ragged wrapper looks up in `plan()` for this kernel.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
    """
    try:
        import torch
        from flashinfer.jit.attention import get_batch_prefill_uri
    except ImportError as error:
        raise _not_installed(error) from error
    dtype: torch.dtype = getattr(torch, spec.dtype)
    # position encoding 0 (none), sliding window, no logits soft cap, no fp16 reduction of QK
    shape = (spec.head_dim, spec.head_dim, 0, spec.sliding_window, False, False)
    return str(get_batch_prefill_uri(spec.backend, dtype, dtype, dtype, torch.int32, *shape))


def aot_folder() -> Path:
    """The folder in which FlashInfer looks for kernels that need no compiler; it may not exist yet.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
    """
    try:
        from flashinfer.jit import env
    except ImportError as error:
        raise _not_installed(error) from error
    return Path(env.FLASHINFER_AOT_DIR)


def missing(specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """The kernels that FlashInfer would have to compile, or that were built from another version of it.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
    """
    folder = aot_folder()
    return [spec for spec in specs if not _is_current(folder / kernel_name(spec))]


def build(
    specs: Sequence[KernelSpec],
    output: Path,
    cuda_arch_list: str,
    progress: Progress = _LOGGER.info,
    max_jobs: int | None = None,
) -> list[BuiltKernel]:
    """Compile kernels into `output/<name>/<name>.so`. Takes minutes of several cores for each; needs no GPU.

    Args:
        specs: the kernels wanted; one that is named twice is built once.
        output: folder for the result, made if it does not exist.
        cuda_arch_list: compute capabilities separated by a space, as in `9.0a` or `8.0 8.9`.
        progress: called with a line of text as the work goes on.
        max_jobs: compiler processes at a time, each of up to 3.5 GiB of memory. None: what cores and memory allow.

    Raises:
        ValueError: if `cuda_arch_list` is malformed, or lacks 9.0a where an `fa3` kernel is wanted.
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
        ToolchainError: if nvcc, ninja or a C++ compiler is missing.
        HeadersNotFoundError: if a CUDA header is missing.
        CompileError: if a kernel does not compile or link; those before it stay in `output`.
    """
    wanted = list(dict.fromkeys(specs))
    _check_arch_list(wanted, cuda_arch_list)
    names = [kernel_name(spec) for spec in wanted]
    toolchain = find_toolchain()
    built = []
    with tempfile.TemporaryDirectory(prefix="flashinfer-build-") as scratch:
        stubs = make_placeholders(Path(scratch) / "stubs", toolchain)
        jobs = max_jobs or _default_jobs()
        environment = _environment(toolchain, stubs, Path(scratch), cuda_arch_list, jobs)
        for number, (spec, name) in enumerate(zip(wanted, names, strict=True), start=1):
            label = f"kernel {number} of {len(wanted)}"
            progress(f"{label}: compiling {spec} for {cuda_arch_list}")
            kernel = _build_one(spec, name, output, environment)
            progress(f"{label}: {kernel.size_bytes:,} bytes in {kernel.seconds:.0f} s")
            built.append(kernel)
    return built


def install(output: Path) -> list[Path]:
    """Copy every kernel that `build` left in `output` to where the installed FlashInfer loads it from.

    Returns:
        The installed libraries. A server that is running keeps what it has loaded.

    Raises:
        FlashInferNotInstalledError: if FlashInfer cannot be imported.
        InstallError: if `output` has no kernel, one was built from another version of FlashInfer, or the
            folder cannot be written.
    """
    libraries = sorted(output.glob("*/*.so"))
    if not libraries:
        raise InstallError(f"{output} holds no kernel: expected NAME/NAME.so, as build() writes them")
    folder, version = aot_folder(), _installed_version()
    for library in libraries:
        built_from = _stamped_version(library.parent) or "(unknown)"
        if built_from != version:
            raise InstallError(
                f"{library.parent.name} was built from {_DISTRIBUTION} {built_from}, and {version} is "
                "installed: build it again, or install that version"
            )
    installed = []
    for library in libraries:
        target = folder / library.parent.name / library.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for source in (library, library.with_name(_STAMP)):
                _replace(source, target.with_name(source.name))
        except OSError as error:
            message = f"cannot write {target}: {error}; install as the owner of that folder"
            raise InstallError(message) from error
        installed.append(target)
    return installed


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
    if shutil.which("ninja", path=_search_path()) is None:
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
        _run([*link, "-o", str(folder / library), f"-Wl,-soname,{soname}"], dict(os.environ), library)
    return folder


def _build_one(spec: KernelSpec, name: str, output: Path, environment: Mapping[str, str]) -> BuiltKernel:
    """Compile one kernel in a process of its own; the library appears whole or not at all."""
    started = time.monotonic()
    path = output / name / f"{name}.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial").resolve()
    request = {
        "backend": spec.backend,
        "head_dim": spec.head_dim,
        "dtype": spec.dtype,
        "sliding_window": spec.sliding_window,
        "target": str(partial),
    }
    try:
        _run([sys.executable, "-c", _COMPILE, json.dumps(request)], environment, str(spec))
        arch_list = environment["FLASHINFER_CUDA_ARCH_LIST"]
        stamp = {_DISTRIBUTION: _installed_version(), "cuda_arch_list": arch_list}
        path.with_name(_STAMP).write_text(json.dumps(stamp) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return BuiltKernel(spec, name, path, path.stat().st_size, time.monotonic() - started)


def _environment(
    toolchain: Toolchain, stubs: Path, scratch: Path, cuda_arch_list: str, max_jobs: int
) -> dict[str, str]:
    """Environment of a compile process: FlashInfer's settings, and nothing written outside `scratch`."""
    includes = " ".join(f"-isystem {shlex.quote(str(folder))}" for folder in toolchain.include_dirs)
    # Named again after --no-as-needed: some distributions' linkers drop an empty stand-in otherwise.
    libraries = f"-L{shlex.quote(str(stubs))} -Wl,--no-as-needed -lcudart -lcuda"
    settings = {
        "CUDA_HOME": str(toolchain.cuda_home),
        "PATH": _search_path(),
        "MAX_JOBS": str(max_jobs),
        "FLASHINFER_CUDA_ARCH_LIST": cuda_arch_list,
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
        "FLASHINFER_EXTRA_CFLAGS": includes,
        "FLASHINFER_EXTRA_CUDAFLAGS": includes,
        "FLASHINFER_EXTRA_LDFLAGS": libraries,
    }
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLASHINFER_")}
    return inherited | settings


def _run(command: Sequence[str], environment: Mapping[str, str], what: str) -> None:
    """Run a program to its end; its output appears only in the error."""
    done = subprocess.run(  # noqa: S603  (the command is ours, with no shell)
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise CompileError(f"{what}: exit status {done.returncode}\n{done.stdout[-_OUTPUT_TAIL:]}")


def _check_arch_list(specs: Sequence[KernelSpec], cuda_arch_list: str) -> None:
    """Refuse an architecture list that would fail minutes later."""
    if not _ARCH_LIST.fullmatch(cuda_arch_list):
        raise ValueError(f"cuda_arch_list is like '9.0a' or '8.0 8.9', not {cuda_arch_list!r}")
    hopper = {"9.0", "9.0a"} & set(cuda_arch_list.split(" "))
    if not hopper and any(spec.backend == "fa3" for spec in specs):
        raise ValueError(f"fa3 kernels are for Hopper: cuda_arch_list needs 9.0a, and is {cuda_arch_list!r}")


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


def _search_path() -> str:
    """PATH with this interpreter's scripts, where pip puts ninja, in front."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _default_jobs() -> int:
    """Compiler processes that this machine's cores and memory carry."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // _MEMORY_PER_JOB))


def _is_current(folder: Path) -> bool:
    """Whether a folder holds a library of the installed version; unstamped ones came with FlashInfer."""
    if not (folder / f"{folder.name}.so").is_file():
        return False
    return _stamped_version(folder) in (None, _installed_version())


def _stamped_version(folder: Path) -> str | None:
    """FlashInfer version that a kernel was built from, where `build` noted one."""
    try:
        stamp = json.loads((folder / _STAMP).read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return "(unreadable)"
    return str(stamp.get(_DISTRIBUTION)) if isinstance(stamp, dict) else "(unreadable)"


def _installed_version() -> str:
    """Version of the installed FlashInfer."""
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _not_installed(error) from error


def _replace(source: Path, target: Path) -> None:
    """Copy so that a process which has the old file mapped keeps it."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _not_installed(error: Exception) -> FlashInferNotInstalledError:
    return FlashInferNotInstalledError(f"FlashInfer does not import ({error}): pip install {_DISTRIBUTION}")
