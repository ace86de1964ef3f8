"""Kernels built ahead of time: what they are called, and which are missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rose_backend.attention.flashinfer_kernels import (
    FlashInferNotInstalledError,
    KernelSpec,
    aot_folder,
    installed_version,
    kernel_name,
    missing,
)
from tests.support.fake_flashinfer import VERSION, fake_flashinfer, put_kernel, without_modules

FA2 = KernelSpec("fa2", head_dim=64)
FA3 = KernelSpec("fa3", head_dim=128)


class TestSpec:
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"backend": "fa4", "head_dim": 128}, "backend"),
            ({"backend": "fa2", "head_dim": 32}, "head_dim"),
            ({"backend": "fa2", "head_dim": 64, "dtype": "float32"}, "dtype"),
        ],
    )
    def test_refuses_what_has_no_kernel_and_names_the_field(self, fields: Any, field: str) -> None:
        with pytest.raises(ValueError, match=field):
            KernelSpec(**fields)

    def test_reads_well_in_a_message(self) -> None:
        spec = KernelSpec("fa3", head_dim=64, sliding_window=True)
        assert str(spec) == "fa3, head_dim 64, bfloat16, sliding window"


class TestName:
    """Against the FlashInfer that is installed, if any."""

    @pytest.fixture(autouse=True)
    def _flashinfer(self) -> None:
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
    def test_is_flashinfers_own(self, spec: KernelSpec, name: str) -> None:
        assert kernel_name(spec) == name

    def test_agrees_with_the_module_that_would_be_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch
        from flashinfer.jit import core
        from flashinfer.jit.attention import gen_batch_prefill_module

        monkeypatch.setattr(core, "check_cuda_arch", lambda: None)  # no GPU here
        dtypes = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
        module = gen_batch_prefill_module("fa2", *dtypes, 64, 64, 0, False, False, False)
        assert module.name == kernel_name(FA2)
        assert module.aot_path.parent == aot_folder() / module.name


class TestMissing:
    @pytest.fixture
    def aot(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        with fake_flashinfer(tmp_path / "site", monkeypatch) as folder:
            yield folder

    def test_everything_without_a_folder(self, aot: Path) -> None:
        assert not aot.exists()
        assert missing([FA2, FA3]) == [FA2, FA3]

    def test_not_what_is_there(self, aot: Path) -> None:
        put_kernel(aot, FA3)
        assert missing([FA2, FA3]) == [FA2]

    def test_a_sliding_window_is_a_kernel_of_its_own(self, aot: Path) -> None:
        put_kernel(aot, FA3)
        sliding = KernelSpec("fa3", head_dim=128, sliding_window=True)
        assert missing([FA3, sliding]) == [sliding]

    def test_a_kernel_of_another_version(self, aot: Path) -> None:
        assert installed_version() == VERSION
        put_kernel(aot, FA3, version="1.2.2")
        assert missing([FA3]) == [FA3]

    def test_not_a_kernel_that_came_with_flashinfer(self, aot: Path) -> None:
        put_kernel(aot, FA3, version=None)
        assert missing([FA3]) == []

    def test_a_folder_without_its_library(self, aot: Path) -> None:
        put_kernel(aot, FA3).unlink()
        assert missing([FA3]) == [FA3]

    @pytest.mark.parametrize("stamp", ["{", "7"])
    def test_an_unreadable_stamp(self, aot: Path, stamp: str) -> None:
        put_kernel(aot, FA3).with_name("build.json").write_text(stamp)
        assert missing([FA3]) == [FA3]


@pytest.mark.parametrize("call", [lambda: kernel_name(FA2), aot_folder, lambda: missing([FA2])])
def test_without_flashinfer_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]
) -> None:
    with without_modules("flashinfer"):
        monkeypatch.setitem(sys.modules, "flashinfer", None)
        with pytest.raises(FlashInferNotInstalledError, match="pip install flashinfer-python"):
            call()
        monkeypatch.delitem(sys.modules, "flashinfer")


def test_a_flashinfer_that_refuses_to_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_flashinfer(tmp_path / "site", monkeypatch):
        (tmp_path / "site" / "flashinfer" / "__init__.py").write_text("raise RuntimeError('its cubins are of 1.2.2')")
        with pytest.raises(FlashInferNotInstalledError, match=r"its cubins are of 1\.2\.2"):
            aot_folder()
