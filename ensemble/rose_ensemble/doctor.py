"""Checks of a machine, each with what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rose_backend.errors import RoseError
from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT, resolve_checkpoint
from rose_ensemble.server_process import Endpoints
from rose_ensemble.tritonserver import find_server, find_serving_interpreters, wheel_problem

_SHM = "/dev/shm"  # noqa: S108 (the device itself, not a temporary file)
_LEAST_SHM_MB = 256  # two models of a pipeline start with 1 MB regions each and grow with their largest batch


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One check's outcome, and the remedy where one is needed."""

    subject: str
    level: Level
    text: str
    remedy: str = ""


def examine(host: str, ports: Sequence[int]) -> list[Finding]:
    """Run every check."""
    return [_python(), _numpy(), _server(), _weights(), _gpu(), _shared_memory(), *_ports(host, ports)]


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] in ((3, 10), (3, 11), (3, 12)):
        return Finding("python", Level.OK, f"{version} ({sys.executable})")
    others = find_serving_interpreters()
    remedy = f"use {others[0]}" if others else "install Python 3.10, 3.11 or 3.12"
    if shutil.which("tritonserver") is not None:
        return Finding("python", Level.WARNING, f"{version}; the tritonserver on PATH brings its own", remedy)
    return Finding("python", Level.PROBLEM, f"{version}: the server's wheel needs 3.10 to 3.12", remedy)


def _numpy() -> Finding:
    version = importlib.metadata.version("numpy")
    wheel_serves = shutil.which("tritonserver") is None
    if wheel_serves and int(version.split(".")[0]) >= 2:
        return Finding(
            "numpy",
            Level.PROBLEM,
            f"{version}: the wheel's server garbles tensors with it",
            "pip install 'numpy<2'",
        )
    return Finding("numpy", Level.OK, version)


def _server() -> Finding:
    try:
        server = find_server()
    except RoseError as error:
        remedy = "pip install 'rose-on-triton[server]'" if wheel_problem() is None else ""
        return Finding("tritonserver", Level.PROBLEM, str(error), remedy)
    return Finding("tritonserver", Level.OK, f"{server.executable} ({server.origin})")


def _weights() -> Finding:
    try:
        return Finding("default weights", Level.OK, str(resolve_checkpoint(DEFAULT_CHECKPOINT)))
    except RoseError as error:
        return Finding("default weights", Level.WARNING, str(error))


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", Level.PROBLEM, "not installed", "pip install torch")
    import torch  # slow to import, so only once it is known to be there

    if not torch.cuda.is_available():
        remedy = "fine for small models; for a GPU install its driver and a CUDA build of torch"
        return Finding("gpu", Level.WARNING, f"torch {torch.__version__} sees none: the CPU will serve", remedy)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("gpu", Level.OK, f"torch {torch.__version__}: {', '.join(names)}")


def _shared_memory() -> Finding:
    try:
        free_mb = shutil.disk_usage(_SHM).free // 2**20
    except OSError as cause:
        return Finding(_SHM, Level.PROBLEM, f"{cause.strerror}", f"mount a tmpfs on {_SHM}")
    if free_mb < _LEAST_SHM_MB:
        remedy = "in a container: --shm-size=1g (compose: shm_size: 1gb)"
        return Finding(_SHM, Level.PROBLEM, f"{free_mb} MB free; Triton's Python backend moves tensors there", remedy)
    return Finding(_SHM, Level.OK, f"{free_mb} MB free")


def _ports(host: str, ports: Sequence[int]) -> list[Finding]:
    return [_port(host, port) for port in ports]


def _port(host: str, port: int) -> Finding:
    try:
        Endpoints.free(host, port)
    except RoseError as error:
        return Finding(f"port {port}", Level.WARNING, str(error), "stop what uses it, or choose another")
    return Finding(f"port {port}", Level.OK, f"free on {host}")
