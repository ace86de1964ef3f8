"""Finding a tritonserver and the way to start it: a container's own, else the one in the `nvidia-pytriton` wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_backend.errors import RoseError
from rose_ensemble.tracing import triton_options

_PYTHONS = ("3.10", "3.11", "3.12")
_TUNABLES = "GLIBC_TUNABLES"
EXIT_SECONDS = 60  # for what is left after a minute of draining; as long again, since Triton's 30 may be too short


class ServerNotFoundError(RoseError):
    """No tritonserver that could run here; the message says what to install."""


@dataclass(frozen=True)
class TritonServer:
    """An executable and what it needs around it.

    Attributes:
        executable: the `tritonserver` binary.
        backends: `--backend-directory`, or None to keep the server's own.
        environment: variables to add to the process.
        origin: where it was found, for people.
    """

    executable: Path
    backends: Path | None
    environment: dict[str, str]
    origin: str

    def command(
        self,
        repository: Path,
        models: Sequence[str],
        host: str,
        http_port: int,
        grpc_port: int,
        metrics_port: int,
    ) -> list[str]:
        """The command line that serves `models` (and what they are made of) from `repository`; `host` is numeric."""
        # HTTP and metrics listen on an IPv6 address only when it is marked as one (without, they report success and
        # listen nowhere); gRPC wants it as in a URL.
        http_host, grpc_host = (f"ipv6:{host}", f"[{host}]") if ":" in host else (host, host)
        command = [
            str(self.executable),
            f"--model-repository={repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in models),
            f"--http-address={http_host}",
            f"--http-port={http_port}",
            f"--grpc-address={grpc_host}",
            f"--grpc-port={grpc_port}",
            f"--metrics-address={http_host}",
            f"--metrics-port={metrics_port}",
            f"--exit-timeout-secs={EXIT_SECONDS}",
            "--disable-auto-complete-config",
            "--pinned-memory-pool-byte-size=0",  # tensors cross Triton in ordinary memory; the engine pins its own
            "--log-info=false",
            *triton_options(),
        ]
        if not Path("/dev/nvidia0").exists():
            command.append("--allow-gpu-metrics=false")
        if self.backends is not None:
            command.append(f"--backend-directory={self.backends}")
        return command


def find_server() -> TritonServer:
    """The server to run.

    Raises:
        ServerNotFoundError: none is installed, or this Python or numpy cannot serve with the wheel's.
    """
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return TritonServer(Path(on_path), None, _interpreter_environment(), "PATH")
    return _server_from_wheel()


def _server_from_wheel() -> TritonServer:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ServerNotFoundError(
            "no tritonserver: neither on PATH nor in the wheel nvidia-pytriton; "
            "pip install 'rose-on-triton[server]' on Python 3.10 to 3.12, or run inside a tritonserver container"
        )
    problem = wheel_problem()
    if problem is not None:
        raise ServerNotFoundError(problem)
    root = Path(spec.origin).parent / "tritonserver"
    # The stub finds the wheel's own libraries only from its original place, so the loader is told where they are.
    environment = _interpreter_environment(root.parents[1] / "nvidia_pytriton.libs")
    return TritonServer(root / "bin" / "tritonserver", _python_backend(root), environment, "nvidia-pytriton")


def wheel_problem() -> str | None:
    """Why the wheel's server cannot run with this interpreter, or None."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in _PYTHONS:
        return f"Python {version}: the server of nvidia-pytriton needs one of {', '.join(_PYTHONS)}"
    numpy_version = importlib.metadata.version("numpy")
    if int(numpy_version.split(".")[0]) >= 2:
        return (
            f"numpy {numpy_version}: the server of nvidia-pytriton was built for numpy 1 and would garble "
            "tensors; pip install 'numpy<2'"
        )
    if _shared_libpython() is None:
        return (
            f"{sys.executable} has no shared libpython{version}.so, which Triton's Python backend links: "
            "use an interpreter built with --enable-shared"
        )
    return None


def _shared_libpython() -> Path | None:
    folder = Path(sysconfig.get_config_var("LIBDIR") or "")
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    # Debian keeps it in the multiarch folder, which the loader searches by itself.
    for candidate in (folder / name, folder / (sysconfig.get_config_var("MULTIARCH") or "") / name):
        if candidate.is_file():
            return candidate
    return None


def _python_backend(root: Path) -> Path:
    """A backend folder for this interpreter: the wheel's Python backend with the stub that links our libpython.

    The wheel keeps stubs apart, and site-packages may be read-only, so the folder is made in the user's cache.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    release = importlib.metadata.version("nvidia-pytriton")
    backends = cache / "rose" / f"triton-backends-{release}-py{version}"
    python = backends / "python"
    python.mkdir(parents=True, exist_ok=True)
    sources = [
        root / "backends" / "python" / "libtriton_python.so",
        root / "backends" / "python" / "triton_python_backend_utils.py",
        root / "python_backend_stubs" / version / "triton_python_backend_stub",
    ]
    for source in sources:
        target = python / source.name
        if not target.is_file() or target.stat().st_size != source.stat().st_size:
            temporary = target.with_suffix(f".{os.getpid()}")
            shutil.copy2(source, temporary)
            temporary.replace(target)  # atomic: a server starting beside us never sees half a file
    return backends


def _interpreter_environment(*libraries: Path) -> dict[str, str]:
    """What makes the stub's embedded Python the one that runs us, with its site-packages."""
    environment = {"PATH": _joined([Path(sys.executable).parent], "PATH")}
    if _TUNABLES not in os.environ:
        # A vocabulary is tens of MB that every text is looked up in, and weights are more: in huge pages the processor
        # finds its way through them sooner (tokenizing took 0.8 to 0.9 of the time, MiniLM on the CPU 0.92).
        environment[_TUNABLES] = "glibc.malloc.hugetlb=1"
    libpython = _shared_libpython()
    folders = [*([libpython.parent] if libpython is not None else []), *libraries]
    if folders:
        environment["LD_LIBRARY_PATH"] = _joined(folders, "LD_LIBRARY_PATH")
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    return environment


def _joined(folders: list[Path], variable: str) -> str:
    """The folders in front of what the variable already holds."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(variable)])])


def find_serving_interpreters() -> list[str]:
    """Interpreters on PATH whose version the wheel's server supports, newest first."""
    found = (shutil.which(f"python{version}") for version in reversed(_PYTHONS))
    return [path for path in found if path is not None]
