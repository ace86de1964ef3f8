"""Build FlashInfer's ragged attention kernels ahead of time, for servers that have no compiler. Needs no GPU.

built = build([KernelSpec("fa3", head_dim=128)], Path("kernels"), cuda_arch_list="9.0a")  # where nvcc is
install(libraries_in(Path("kernels")))  # on the server, under the same FlashInfer version
missing([KernelSpec("fa3", head_dim=128)])  # [] once they are there
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_backend.attention.flashinfer_kernels import DISTRIBUTION, STAMP, KernelSpec, installed_version, kernel_name
from rose_backend.attention.flashinfer_toolchain import (
    Toolchain,
    find_toolchain,
    make_placeholders,
    run_program,
    search_path,
)

Progress = Callable[[str], None]
"""Receives one line of text before and after each kernel."""

_LOGGER = logging.getLogger(__name__)

_MEMORY_PER_JOB = 4 << 30  # bytes; the largest compiler process was seen at 3.3 GiB
_ARCH_LIST = re.compile(r"\d+\.\d+[af]?( \d+\.\d+[af]?)*")

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
    # Compilers that an interrupt ends may write while the folder is being removed.
    with tempfile.TemporaryDirectory(prefix="flashinfer-build-", ignore_cleanup_errors=True) as scratch:
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
        run_program([sys.executable, "-c", _COMPILE, json.dumps(request)], environment, str(spec))
        arch_list = environment["FLASHINFER_CUDA_ARCH_LIST"]
        stamp = {DISTRIBUTION: installed_version(), "cuda_arch_list": arch_list}
        path.with_name(STAMP).write_text(json.dumps(stamp) + "\n")
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
        "PATH": search_path(),
        "TMPDIR": str(scratch),  # nvcc leaves its own files there when it is killed
        "MAX_JOBS": str(max_jobs),
        "FLASHINFER_CUDA_ARCH_LIST": cuda_arch_list,
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
        "FLASHINFER_EXTRA_CFLAGS": includes,
        "FLASHINFER_EXTRA_CUDAFLAGS": includes,
        "FLASHINFER_EXTRA_LDFLAGS": libraries,
    }
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLASHINFER_")}
    return inherited | settings


def _check_arch_list(specs: Sequence[KernelSpec], cuda_arch_list: str) -> None:
    """Refuse an architecture list that would fail minutes later."""
    if not _ARCH_LIST.fullmatch(cuda_arch_list):
        raise ValueError(f"cuda_arch_list is like '9.0a' or '8.0 8.9', not {cuda_arch_list!r}")
    hopper = {"9.0", "9.0a"} & set(cuda_arch_list.split(" "))
    if not hopper and any(spec.backend == "fa3" for spec in specs):
        raise ValueError(f"fa3 kernels are for Hopper: cuda_arch_list needs 9.0a, and is {cuda_arch_list!r}")


def _default_jobs() -> int:
    """Compiler processes that this machine's cores and memory carry."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // _MEMORY_PER_JOB))
