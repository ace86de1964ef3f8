"""The Triton kernels without a GPU: runs `interpreted_kernels.py` in a process with Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

_CASES = Path(__file__).with_name("interpreted_kernels.py")


_LONG = "pool_modes or turns_without or through_a_window or many_tokens or split_linear"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the Triton language is not installed")
@pytest.mark.parametrize(
    "cases", [f"not ({_LONG})", pytest.param(_LONG, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_kernels_in_tritons_interpreter(cases: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-k", cases, str(_CASES)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=_CASES.parents[2],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
