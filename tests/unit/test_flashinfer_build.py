"""Building and installing kernels, as a module and as `rose build-kernels`. Nothing is compiled for a GPU."""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose_backend.attention.flashinfer_build import build
from rose_backend.attention.flashinfer_install import InstallError, install, libraries_in, require_writable
from rose_backend.attention.flashinfer_kernels import KernelSpec, missing
from rose_backend.attention.flashinfer_toolchain import CompileError
from rose_client.cli.main import app
from tests.support.fake_flashinfer import VERSION, fake_flashinfer, fake_toolkit, name_of, put_kernel

FA2 = KernelSpec("fa2", head_dim=64)
FA3 = KernelSpec("fa3", head_dim=128)

needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def aot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A FlashInfer of version 1.2.3 whose ahead-of-time folder does not exist yet."""
    with fake_flashinfer(tmp_path / "site", monkeypatch) as folder:
        yield folder


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_toolkit(tmp_path / "toolkit", monkeypatch)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files of this process's children go."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


class TestInstall:
    def test_copies_what_was_built(self, aot: Path, tmp_path: Path) -> None:
        for spec in (FA2, FA3):
            put_kernel(tmp_path / "out", spec)
        installed = install(libraries_in(tmp_path / "out"))
        assert installed == [aot / name_of(spec) / f"{name_of(spec)}.so" for spec in (FA2, FA3)]
        assert missing([FA2, FA3]) == []

    def test_replaces_an_older_kernel_whole(self, aot: Path, tmp_path: Path) -> None:
        old = put_kernel(aot, FA3, version="1.2.2", content="old")
        put_kernel(tmp_path / "out", FA3, content="new")
        with old.open() as loaded:  # as a running server has it mapped
            install(libraries_in(tmp_path / "out"))
            assert loaded.read() == "old"
        assert old.read_text() == "new"
        assert sorted(path.name for path in old.parent.iterdir()) == sorted([old.name, "build.json"])

    @pytest.mark.parametrize("version", ["1.2.2", None])
    def test_refuses_another_version_before_it_copies_any(self, aot: Path, tmp_path: Path, version: str | None) -> None:
        put_kernel(tmp_path / "out", FA2)
        put_kernel(tmp_path / "out", FA3, version=version)
        with pytest.raises(InstallError, match=VERSION):
            install(libraries_in(tmp_path / "out"))
        assert not aot.exists()

    def test_refuses_an_empty_folder(self, aot: Path, tmp_path: Path) -> None:
        with pytest.raises(InstallError, match="no kernel"):
            libraries_in(tmp_path)

    def test_names_a_folder_that_cannot_be_written(self, aot: Path, tmp_path: Path) -> None:
        put_kernel(tmp_path / "out", FA3)
        aot.parent.mkdir(parents=True)
        aot.write_text("a file is in the way")
        with pytest.raises(InstallError, match="cannot write"):
            require_writable()
        with pytest.raises(InstallError, match="cannot write"):
            install(libraries_in(tmp_path / "out"))

    def test_leaves_nothing_where_it_looked_whether_it_may_write(self, aot: Path) -> None:
        require_writable()
        assert list(aot.iterdir()) == []


@needs_cxx
class TestBuild:
    def test_writes_each_kernel_once_with_its_stamp(self, aot: Path, toolkit: Path, tmp_path: Path) -> None:
        lines: list[str] = []
        built = build([FA2, FA3, FA2], tmp_path / "out", "9.0a", lines.append)
        assert [kernel.spec for kernel in built] == [FA2, FA3]
        assert [kernel.path for kernel in built] == libraries_in(tmp_path / "out")
        assert built[0].size_bytes == built[0].path.stat().st_size
        assert len(lines) == 4
        assert lines[0] == "kernel 1 of 2: compiling fa2, head_dim 64, bfloat16 for 9.0a"
        install([kernel.path for kernel in built])
        assert missing([FA2, FA3]) == []

    def test_compiles_with_its_own_settings_and_writes_elsewhere_only_the_kernel(
        self, aot: Path, toolkit: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")  # a server's setting, which would refuse to compile
        (kernel,) = build([FA2], tmp_path / "out", "8.0 9.0a", max_jobs=3)
        seen = json.loads(kernel.path.read_text())
        assert "FLASHINFER_DISABLE_JIT" not in seen
        assert seen["CUDA_HOME"] == str(toolkit)
        assert seen["FLASHINFER_CUDA_ARCH_LIST"] == "8.0 9.0a"
        assert seen["MAX_JOBS"] == "3"
        assert seen["TMPDIR"] == seen["FLASHINFER_WORKSPACE_BASE"]
        assert f"-L{seen['TMPDIR']}/stubs" in seen["FLASHINFER_EXTRA_LDFLAGS"]
        assert sorted(path.name for path in kernel.path.parent.iterdir()) == ["build.json", kernel.path.name]
        assert not Path(seen["TMPDIR"]).exists()

    def test_a_failure_shows_the_compilers_words_and_leaves_no_library(
        self, aot: Path, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_COMPILER_SAYS", "no such instruction")
        with pytest.raises(CompileError, match=r"fa3, head_dim 128.*(?s:.*)no such instruction"):
            build([FA3], tmp_path / "out", "9.0a")
        assert not list((tmp_path / "out").rglob("*.so"))
        assert not list((tmp_path / "out").rglob("*.partial"))

    @pytest.mark.parametrize("arch_list", ["", "9.0a,8.0", "sm_90a", "9.0a  8.0"])
    def test_refuses_a_malformed_architecture_list(self, tmp_path: Path, arch_list: str) -> None:
        with pytest.raises(ValueError, match="cuda_arch_list"):
            build([FA2], tmp_path, arch_list)

    def test_refuses_a_hopper_kernel_for_another_chip(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"needs 9\.0a"):
            build([FA3], tmp_path, "8.0 8.9")


def _rose(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["build-kernels", *arguments])


@needs_cxx
@pytest.mark.slow
class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "names"),
        [
            ((), ["kernel_fa2_64_False", "kernel_fa2_128_False", "kernel_fa3_64_False", "kernel_fa3_128_False"]),
            (("--arch", "8.0 8.9", "--head-dim", "256"), ["kernel_fa2_256_False"]),
            (("--head-dim", "128", "--sliding-window"), ["kernel_fa2_128_True", "kernel_fa3_128_True"]),
        ],
    )
    def test_builds_and_installs(self, aot: Path, toolkit: Path, arguments: tuple[str, ...], names: list[str]) -> None:
        result = _rose(*arguments)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == [str(aot / name / f"{name}.so") for name in names]
        assert sorted(folder.name for folder in aot.iterdir()) == sorted(names)

    def test_output_serves_another_host(
        self, aot: Path, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        output = tmp_path / "out"
        put_kernel(output, FA2, version="1.2.2")  # of an earlier FlashInfer, and not asked for now
        assert _rose("--head-dim", "128", "--output", str(output)).exit_code == 0
        assert len(libraries_in(output)) == 3
        shutil.rmtree(output / name_of(FA2))
        with fake_flashinfer(tmp_path / "other", monkeypatch) as other:
            result = _rose("--install-from", str(output))
            assert result.exit_code == 0, result.stderr
            assert missing([FA3]) == []
        assert result.stdout.splitlines() == [str(path) for path in libraries_in(other)]

    def test_refuses_to_compile_what_it_could_not_install(self, aot: Path, toolkit: Path) -> None:
        aot.parent.mkdir(parents=True)
        aot.write_text("a file is in the way")
        result = _rose("--head-dim", "128")
        assert result.exit_code == 1
        assert "cannot write" in result.stderr
        assert "compiling" not in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (("--head-dim", "96"), "head_dim is one of (64, 128, 256), not 96"),
            (("--arch", "sm_90a"), "cuda_arch_list"),
            (("--install-from", "/nothing/here"), "/nothing/here holds no kernel"),
        ],
    )
    def test_refusals_are_one_line(self, aot: Path, toolkit: Path, arguments: tuple[str, ...], part: str) -> None:
        result = _rose(*arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert part in result.stderr

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_an_interrupt_ends_the_compilers_and_leaves_nothing(
        self, aot: Path, toolkit: Path, tmp_path: Path, scratch: Path, number: signal.Signals
    ) -> None:
        held = tmp_path / "held"
        os.mkfifo(held)  # at its end when everything that a compiler started is gone
        environment = os.environ | {"FAKE_COMPILER_HOLDS": str(held)}
        command = [sys.executable, "-m", "rose_client.cli", "build-kernels", "--head-dim", "128"]
        heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells' background jobs ignore it
        with (
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=heeding) as rose,
            held.open("rb") as pipe,
        ):
            assert pipe.readline() == b"started\n"
            rose.send_signal(number)
            rose.communicate(timeout=60)
            assert select.select([pipe], [], [], 60)[0]
            assert pipe.read() == b""
        assert rose.returncode == 128 + number
        assert list(scratch.iterdir()) == []
        assert list(aot.iterdir()) == []
