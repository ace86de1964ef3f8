"""What a build of kernels needs to find on the machine, and what it says of what is not there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from rose_backend.attention.flashinfer_toolchain import (
    CompileError,
    HeadersNotFoundError,
    Toolchain,
    ToolchainError,
    find_toolchain,
    make_placeholders,
    run_program,
)
from tests.support.fake_flashinfer import fake_toolkit, fake_wheels, write_program

needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA 13 toolkit with every header, named by CUDA_HOME, beside a ninja and a C++ compiler; no wheels."""
    home = fake_toolkit(tmp_path / "toolkit", monkeypatch)
    write_program(tmp_path / "tools" / "c++", "exit 1")
    return home


class TestToolchain:
    def test_of_a_complete_toolkit(self, toolkit: Path) -> None:
        assert find_toolchain() == Toolchain(toolkit, cuda_major=13, include_dirs=())

    def test_takes_absent_headers_from_a_wheel_of_the_same_cuda(
        self, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for header in (toolkit / "include").iterdir():
            header.unlink()
        _, cu13 = fake_wheels(tmp_path / "site", monkeypatch, "cu12", "cu13")
        assert find_toolchain().include_dirs == (cu13 / "include",)

    def test_names_the_wheel_of_a_header_that_is_nowhere(self, toolkit: Path) -> None:
        (toolkit / "include" / "curand.h").unlink()
        with pytest.raises(HeadersNotFoundError, match=r"pip install nvidia-curand$"):
            find_toolchain()

    def test_names_the_wheel_of_the_toolkits_cuda(self, toolkit: Path) -> None:
        write_program(toolkit / "bin" / "nvcc", "echo 'Cuda compilation tools, release 12.8, V12.8.93'")
        (toolkit / "include" / "cuda_runtime.h").unlink()
        with pytest.raises(HeadersNotFoundError, match=r"pip install nvidia-cuda-runtime-cu12$"):
            find_toolchain()

    def test_refuses_a_cuda_home_without_nvcc(self, toolkit: Path) -> None:
        (toolkit / "bin" / "nvcc").unlink()
        with pytest.raises(ToolchainError, match=r"CUDA_HOME is .*unset it"):
            find_toolchain()

    def test_names_an_absent_compiler(self, toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler -pipe")
        with pytest.raises(ToolchainError, match="no-such-compiler"):
            find_toolchain()

    def test_names_an_absent_ninja(self, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "tools" / "ninja").unlink()
        monkeypatch.setenv("PATH", str(tmp_path / "tools"))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
        with pytest.raises(ToolchainError, match="pip install ninja"):
            find_toolchain()

    def test_finds_ninja_beside_an_interpreter_that_is_not_on_the_path(
        self, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripts = tmp_path / "venv" / "bin"
        scripts.mkdir(parents=True)
        (tmp_path / "tools" / "ninja").rename(scripts / "ninja")
        monkeypatch.setenv("PATH", str(tmp_path / "tools"))
        monkeypatch.setattr(sys, "executable", str(scripts / "python"))
        assert find_toolchain().cuda_home == toolkit

    @pytest.mark.parametrize(("script", "part"), [("echo hello", "names no release"), (None, "does not run")])
    def test_refuses_a_program_that_is_not_nvcc(self, toolkit: Path, script: str | None, part: str) -> None:
        nvcc = toolkit / "bin" / "nvcc"
        if script is None:
            nvcc.chmod(0o644)
        else:
            write_program(nvcc, script)
        with pytest.raises(ToolchainError, match=part):
            find_toolchain()

    def test_takes_the_nvcc_on_the_path(self, toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CUDA_HOME")
        monkeypatch.delenv("CUDA_PATH", raising=False)
        monkeypatch.setenv("PATH", os.pathsep.join([str(toolkit / "bin"), os.environ["PATH"]]))
        assert find_toolchain().cuda_home == toolkit

    def test_passes_over_a_launcher_on_the_path(
        self, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (wheel,) = fake_wheels(tmp_path / "site", monkeypatch, "cu13")
        for part in ("bin", "nvvm"):
            shutil.copytree(toolkit / part, wheel / part)
        write_program(tmp_path / "tools" / "nvcc", f"exec {toolkit}/bin/nvcc")
        monkeypatch.delenv("CUDA_HOME")
        monkeypatch.delenv("CUDA_PATH", raising=False)
        assert find_toolchain().cuda_home in (wheel, Path("/usr/local/cuda"))


@needs_cxx
class TestPlaceholders:
    def test_carry_the_real_sonames(self, tmp_path: Path) -> None:
        toolchain = Toolchain(tmp_path / "toolkit", cuda_major=13, include_dirs=())
        stubs = make_placeholders(tmp_path / "stubs", toolchain)
        assert sorted(path.name for path in stubs.iterdir()) == ["libcuda.so", "libcudart.so"]
        assert b"\0libcudart.so.13\0" in (stubs / "libcudart.so").read_bytes()
        assert b"\0libcuda.so.1\0" in (stubs / "libcuda.so").read_bytes()

    def test_are_made_only_for_what_the_toolkit_lacks(self, tmp_path: Path) -> None:
        libraries = tmp_path / "toolkit" / "lib64"
        libraries.mkdir(parents=True)
        (libraries / "libcudart.so").touch()
        toolchain = Toolchain(tmp_path / "toolkit", cuda_major=12, include_dirs=())
        stubs = make_placeholders(tmp_path / "stubs", toolchain)
        assert [path.name for path in stubs.iterdir()] == ["libcuda.so"]
        assert [path.name for path in libraries.iterdir()] == ["libcudart.so"]


class TestRunProgram:
    def test_a_failure_says_what_failed_and_how(self) -> None:
        with pytest.raises(CompileError, match=r"(?s)^linking: exit status 3\n.*no such symbol"):
            run_program(["sh", "-c", "echo no such symbol >&2; exit 3"], os.environ, "linking")

    def test_output_of_any_bytes(self) -> None:
        with pytest.raises(CompileError, match="\ufffd"):
            run_program(["sh", "-c", r"printf '\377'; exit 1"], os.environ, "linking")
