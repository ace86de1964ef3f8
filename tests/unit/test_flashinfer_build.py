"""Kernel builds: names, what is missing, toolchain, placeholders. Nothing is compiled for a GPU."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from rose_backend.attention import flashinfer_build
from rose_backend.attention.flashinfer_build import (
    CompileError,
    FlashInferNotInstalledError,
    HeadersNotFoundError,
    InstallError,
    KernelSpec,
    Toolchain,
    ToolchainError,
)

VERSION = "1.2.3"
FA2 = KernelSpec("fa2", head_dim=64)
FA3 = KernelSpec("fa3", head_dim=128)

needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
needs_ninja = pytest.mark.skipif(shutil.which("ninja", path=flashinfer_build._search_path()) is None, reason="no ninja")


def name_of(spec: KernelSpec) -> str:
    return f"kernel_{spec.backend}_{spec.head_dim}_{spec.sliding_window}"


@pytest.fixture
def aot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FlashInfer of version 1.2.3 whose ahead-of-time folder does not exist yet."""
    folder = tmp_path / "flashinfer" / "data" / "aot"
    monkeypatch.setattr(flashinfer_build, "aot_folder", lambda: folder)
    monkeypatch.setattr(flashinfer_build, "kernel_name", name_of)
    monkeypatch.setattr(flashinfer_build, "_installed_version", lambda: VERSION)
    return folder


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA 13 toolkit with every header, named by CUDA_HOME, and no wheels."""
    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    for header in flashinfer_build._HEADERS:
        (home / "include" / header).touch()
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(flashinfer_build, "_wheel_folders", list)
    return home


def put_kernel(folder: Path, spec: KernelSpec, version: str | None = VERSION, content: str = "code") -> Path:
    path = folder / name_of(spec) / f"{name_of(spec)}.so"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    if version is not None:
        path.with_name("build.json").write_text(json.dumps({"flashinfer-python": version}))
    return path


class TestSpec:
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"backend": "fa4", "head_dim": 128}, "backend"),
            ({"backend": "fa2", "head_dim": 32}, "head_dim"),
            ({"backend": "fa2", "head_dim": 64, "dtype": "float32"}, "dtype"),
        ],
    )
    def test_refuses_what_has_no_kernel_and_names_the_field(self, fields, field):
        with pytest.raises(ValueError, match=field):
            KernelSpec(**fields)

    def test_reads_well_in_a_message(self):
        spec = KernelSpec("fa3", head_dim=64, sliding_window=True)
        assert str(spec) == "fa3, head_dim 64, bfloat16, sliding window"


class TestName:
    """Against the FlashInfer that is installed, if any."""

    @pytest.fixture(autouse=True)
    def _flashinfer(self):
        pytest.importorskip("flashinfer", exc_type=ImportError)

    @pytest.mark.parametrize(
        ("spec", "name"),
        [
            (
                FA3,
                "batch_prefill_with_kv_cache_dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_dtype_idx_i32_"
                "head_dim_qk_128_head_dim_vo_128_posenc_0_use_swa_False_use_logits_cap_False_f16qk_False_sm90",
            ),
            (
                KernelSpec("fa2", head_dim=64, dtype="float16", sliding_window=True),
                "batch_prefill_with_kv_cache_dtype_q_f16_dtype_kv_f16_dtype_o_f16_dtype_idx_i32_"
                "head_dim_qk_64_head_dim_vo_64_posenc_0_use_swa_True_use_logits_cap_False_f16qk_False",
            ),
        ],
    )
    def test_is_flashinfers_own(self, spec, name):
        assert flashinfer_build.kernel_name(spec) == name

    def test_agrees_with_the_module_that_would_be_compiled(self, monkeypatch):
        import torch
        from flashinfer.jit import core
        from flashinfer.jit.attention import gen_batch_prefill_module

        monkeypatch.setattr(core, "check_cuda_arch", lambda: None)  # no GPU here
        dtypes = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
        module = gen_batch_prefill_module("fa2", *dtypes, 64, 64, 0, False, False, False)
        assert module.name == flashinfer_build.kernel_name(FA2)
        assert module.aot_path.parent == flashinfer_build.aot_folder() / module.name


class TestMissing:
    def test_everything_without_a_folder(self, aot):
        assert flashinfer_build.missing([FA2, FA3]) == [FA2, FA3]

    def test_not_what_is_there(self, aot):
        put_kernel(aot, FA3)
        assert flashinfer_build.missing([FA2, FA3]) == [FA2]

    def test_a_kernel_of_another_version(self, aot):
        put_kernel(aot, FA3, version="1.2.2")
        assert flashinfer_build.missing([FA3]) == [FA3]

    def test_not_a_kernel_that_came_with_flashinfer(self, aot):
        put_kernel(aot, FA3, version=None)
        assert flashinfer_build.missing([FA3]) == []

    def test_a_folder_without_its_library(self, aot):
        put_kernel(aot, FA3).unlink()
        assert flashinfer_build.missing([FA3]) == [FA3]

    def test_an_unreadable_stamp(self, aot):
        put_kernel(aot, FA3).with_name("build.json").write_text("{")
        assert flashinfer_build.missing([FA3]) == [FA3]


@pytest.mark.parametrize("call", [lambda: flashinfer_build.kernel_name(FA2), flashinfer_build.aot_folder])
def test_without_flashinfer_the_message_says_what_to_install(monkeypatch, call):
    for module in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(FlashInferNotInstalledError, match="pip install flashinfer-python"):
        call()


class TestInstall:
    def test_copies_what_was_built(self, aot, tmp_path):
        for spec in (FA2, FA3):
            put_kernel(tmp_path / "out", spec)
        installed = flashinfer_build.install(tmp_path / "out")
        assert installed == [aot / name_of(spec) / f"{name_of(spec)}.so" for spec in (FA2, FA3)]
        assert flashinfer_build.missing([FA2, FA3]) == []

    def test_replaces_an_older_kernel_whole(self, aot, tmp_path):
        old = put_kernel(aot, FA3, version="1.2.2", content="old")
        put_kernel(tmp_path / "out", FA3, content="new")
        with old.open() as loaded:  # as a running server has it mapped
            flashinfer_build.install(tmp_path / "out")
            assert loaded.read() == "old"
        assert old.read_text() == "new"
        assert sorted(path.name for path in old.parent.iterdir()) == sorted([old.name, "build.json"])

    @pytest.mark.parametrize("version", ["1.2.2", None])
    def test_refuses_another_version_before_it_copies_any(self, aot, tmp_path, version):
        put_kernel(tmp_path / "out", FA2)
        put_kernel(tmp_path / "out", FA3, version=version)
        with pytest.raises(InstallError, match=VERSION):
            flashinfer_build.install(tmp_path / "out")
        assert not aot.exists()

    def test_refuses_an_empty_folder(self, aot, tmp_path):
        with pytest.raises(InstallError, match="no kernel"):
            flashinfer_build.install(tmp_path)

    def test_names_a_folder_that_cannot_be_written(self, aot, tmp_path):
        put_kernel(tmp_path / "out", FA3)
        aot.parent.mkdir(parents=True)
        aot.write_text("a file is in the way")
        with pytest.raises(InstallError, match="cannot write"):
            flashinfer_build.install(tmp_path / "out")


@needs_cxx
class TestPlaceholders:
    def test_carry_the_real_sonames(self, tmp_path):
        toolchain = Toolchain(tmp_path / "toolkit", cuda_major=13, include_dirs=())
        stubs = flashinfer_build.make_placeholders(tmp_path / "stubs", toolchain)
        assert sorted(path.name for path in stubs.iterdir()) == ["libcuda.so", "libcudart.so"]
        assert b"\0libcudart.so.13\0" in (stubs / "libcudart.so").read_bytes()
        assert b"\0libcuda.so.1\0" in (stubs / "libcuda.so").read_bytes()

    def test_are_made_only_for_what_the_toolkit_lacks(self, tmp_path):
        libraries = tmp_path / "toolkit" / "lib64"
        libraries.mkdir(parents=True)
        (libraries / "libcudart.so").touch()
        toolchain = Toolchain(tmp_path / "toolkit", cuda_major=12, include_dirs=())
        stubs = flashinfer_build.make_placeholders(tmp_path / "stubs", toolchain)
        assert [path.name for path in stubs.iterdir()] == ["libcuda.so"]
        assert [path.name for path in libraries.iterdir()] == ["libcudart.so"]


@needs_cxx
@needs_ninja
class TestToolchain:
    def test_of_a_complete_toolkit(self, toolkit):
        assert flashinfer_build.find_toolchain() == Toolchain(toolkit, cuda_major=13, include_dirs=())

    def test_takes_absent_headers_from_a_wheel_of_the_same_cuda(self, toolkit, tmp_path, monkeypatch):
        (toolkit / "include" / "cuda_runtime.h").unlink()
        (toolkit / "include" / "curand.h").unlink()
        wheels = [tmp_path / "nvidia" / name for name in ("cu12", "cu13")]
        for wheel in wheels:
            (wheel / "include").mkdir(parents=True)
            (wheel / "include" / "curand.h").touch()
            (wheel / "include" / "cuda_runtime.h").touch()
        monkeypatch.setattr(flashinfer_build, "_wheel_folders", lambda: wheels)
        assert flashinfer_build.find_toolchain().include_dirs == (wheels[1] / "include",)

    def test_names_the_wheel_of_a_header_that_is_nowhere(self, toolkit):
        (toolkit / "include" / "curand.h").unlink()
        with pytest.raises(HeadersNotFoundError, match=r"pip install nvidia-curand$"):
            flashinfer_build.find_toolchain()

    def test_names_the_wheel_of_the_toolkits_cuda(self, toolkit):
        nvcc = toolkit / "bin" / "nvcc"
        nvcc.write_text(nvcc.read_text().replace("13.0", "12.8"))
        (toolkit / "include" / "cuda_runtime.h").unlink()
        with pytest.raises(HeadersNotFoundError, match=r"pip install nvidia-cuda-runtime-cu12$"):
            flashinfer_build.find_toolchain()

    def test_refuses_a_cuda_home_without_nvcc(self, toolkit):
        (toolkit / "bin" / "nvcc").unlink()
        with pytest.raises(ToolchainError, match=r"CUDA_HOME is .*unset it"):
            flashinfer_build.find_toolchain()

    def test_names_an_absent_compiler(self, toolkit, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler -pipe")
        with pytest.raises(ToolchainError, match="no-such-compiler"):
            flashinfer_build.find_toolchain()

    def test_refuses_a_program_that_is_not_nvcc(self, toolkit):
        (toolkit / "bin" / "nvcc").write_text("#!/bin/sh\necho hello\n")
        with pytest.raises(ToolchainError, match="names no release"):
            flashinfer_build.find_toolchain()

    def test_passes_over_a_launcher_on_the_path(self, toolkit, tmp_path, monkeypatch):
        monkeypatch.delenv("CUDA_HOME")
        monkeypatch.delenv("CUDA_PATH", raising=False)
        (toolkit / "nvvm").mkdir()
        launcher = tmp_path / "bin" / "nvcc"
        launcher.parent.mkdir()
        launcher.touch(mode=0o755)
        monkeypatch.setenv("PATH", str(launcher.parent))
        assert flashinfer_build._cuda_home([toolkit]) in (Path("/usr/local/cuda"), toolkit)
        monkeypatch.setenv("PATH", str(toolkit / "bin"))
        assert flashinfer_build._cuda_home([]) == toolkit


@needs_cxx
@needs_ninja
class TestBuild:
    def test_writes_each_kernel_once_with_its_stamp(self, aot, toolkit, tmp_path, monkeypatch):
        monkeypatch.setattr(
            flashinfer_build,
            "_COMPILE",
            "import json, os, sys\n"
            "keys = ('CUDA_HOME', 'FLASHINFER_CUDA_ARCH_LIST', 'FLASHINFER_DISABLE_JIT')\n"
            "seen = str([os.environ.get(key) for key in keys])\n"
            "open(json.loads(sys.argv[1])['target'], 'w').write(seen)\n",
        )
        monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")  # a server's setting, which would refuse to compile
        lines: list[str] = []
        built = flashinfer_build.build([FA2, FA3, FA2], tmp_path / "out", "9.0a", lines.append)
        assert [kernel.spec for kernel in built] == [FA2, FA3]
        assert [kernel.path for kernel in built] == sorted((tmp_path / "out").glob("*/*.so"))
        assert built[0].path.read_text() == str([str(toolkit), "9.0a", None])
        assert built[0].size_bytes == built[0].path.stat().st_size
        assert len(lines) == 4
        assert lines[0] == "kernel 1 of 2: compiling fa2, head_dim 64, bfloat16 for 9.0a"
        flashinfer_build.install(tmp_path / "out")
        assert flashinfer_build.missing([FA2, FA3]) == []

    def test_a_failure_shows_the_compilers_words_and_leaves_no_library(self, aot, toolkit, tmp_path, monkeypatch):
        monkeypatch.setattr(flashinfer_build, "_COMPILE", "raise SystemExit('no such instruction')")
        with pytest.raises(CompileError, match=r"fa3, head_dim 128.*(?s:.*)no such instruction"):
            flashinfer_build.build([FA3], tmp_path / "out", "9.0a")
        assert not list((tmp_path / "out").rglob("*.so"))
        assert not list((tmp_path / "out").rglob("*.partial"))

    @pytest.mark.parametrize("arch_list", ["", "9.0a,8.0", "sm_90a", "9.0a  8.0"])
    def test_refuses_a_malformed_architecture_list(self, tmp_path, arch_list):
        with pytest.raises(ValueError, match="cuda_arch_list"):
            flashinfer_build.build([FA2], tmp_path, arch_list)

    def test_refuses_a_hopper_kernel_for_another_chip(self, tmp_path):
        with pytest.raises(ValueError, match=r"needs 9\.0a"):
            flashinfer_build.build([FA3], tmp_path, "8.0 8.9")
