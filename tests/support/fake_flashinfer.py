"""A FlashInfer, a CUDA toolkit and NVIDIA wheels made of small files, for tests of building and installing kernels.

They are found as real ones are: by PYTHONPATH, CUDA_HOME and PATH, in this process and in those it starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose_backend.attention.flashinfer_kernels import KernelSpec

VERSION = "1.2.3"
HEADERS = ("cuda_runtime.h", "curand.h")

_ENV = """
from pathlib import Path
FLASHINFER_AOT_DIR = Path(__file__).parents[1] / "data" / "aot"
"""
# A compiled kernel holds the environment it was compiled in.
_ATTENTION = """
import json, os, subprocess, sys
from pathlib import Path

def get_batch_prefill_uri(backend, q, kv, o, index, head_dim, head_dim_vo, posenc, swa, cap, f16qk):
    return f"kernel_{backend}_{head_dim}_{swa}"

class _Module:
    def __init__(self, name):
        self.jit_library_path = Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / f"{name}.so"

    def build(self, verbose):
        if "FAKE_COMPILER_SAYS" in os.environ:
            sys.exit(os.environ["FAKE_COMPILER_SAYS"])
        if "FAKE_COMPILER_HOLDS" in os.environ:
            with open(os.environ["FAKE_COMPILER_HOLDS"], "w") as held:
                subprocess.run(["sh", "-c", "echo started; exec sleep 100"], stdout=held)
        self.jit_library_path.write_text(json.dumps(dict(os.environ)))

def gen_batch_prefill_module(backend, q, kv, o, index, *rest):
    return _Module(get_batch_prefill_uri(backend, q, kv, o, index, *rest))
"""


def name_of(spec: KernelSpec) -> str:
    """What the fake FlashInfer calls a kernel."""
    return f"kernel_{spec.backend}_{spec.head_dim}_{spec.sliding_window}"


@contextmanager
def fake_flashinfer(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install FlashInfer 1.2.3 in `site`; yields its ahead-of-time folder, which does not exist yet."""
    package = site / "flashinfer"
    (package / "jit").mkdir(parents=True)
    for module in ("__init__.py", "jit/__init__.py"):
        (package / module).touch()
    (package / "jit" / "env.py").write_text(_ENV)
    (package / "jit" / "attention.py").write_text(_ATTENTION)
    metadata = site / f"flashinfer_python-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {VERSION}\n")
    light = site / "for-children"
    light.mkdir()
    (light / "torch.py").write_text("bfloat16 = float16 = int32 = None")  # a compile process imports it, for seconds
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(light), str(site)]))
    monkeypatch.syspath_prepend(site)
    with without_modules("flashinfer"):
        yield package / "data" / "aot"


@contextmanager
def without_modules(package: str) -> Iterator[None]:
    """Forget that a package was imported, and what is imported of it meanwhile."""

    def loaded() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == package]

    real = {name: sys.modules.pop(name) for name in loaded()}
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(real)


def fake_toolkit(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete CUDA 13 toolkit named by CUDA_HOME, a ninja on the PATH, and no NVIDIA wheels."""
    (home / "bin").mkdir(parents=True)
    (home / "nvvm").mkdir()
    (home / "include").mkdir()
    write_program(home / "bin" / "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    for header in HEADERS:
        (home / "include" / header).touch()
    tools = home.with_name("tools")
    tools.mkdir()
    write_program(tools / "ninja", "exit 1")
    fake_wheels(home.with_name("no-wheels"), monkeypatch)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools), os.environ["PATH"]]))
    return home


def fake_wheels(site: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Path]:
    """NVIDIA wheels with every header, in place of those installed; returns `nvidia/<name>` for each."""
    (site / "nvidia").mkdir(parents=True)
    (site / "nvidia" / "__init__.py").touch()  # a package of this folder alone
    wheels = [site / "nvidia" / name for name in names]
    for wheel in wheels:
        (wheel / "include").mkdir(parents=True)
        for header in HEADERS:
            (wheel / "include" / header).touch()
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return wheels


def write_program(path: Path, script: str) -> None:
    """A shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def put_kernel(folder: Path, spec: KernelSpec, version: str | None = VERSION, content: str = "code") -> Path:
    """A kernel as a build leaves it, `<name>/<name>.so`, with its stamp unless `version` is None."""
    path = folder / name_of(spec) / f"{name_of(spec)}.so"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    if version is not None:
        path.with_name("build.json").write_text(json.dumps({"flashinfer-python": version}))
    return path
