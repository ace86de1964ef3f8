"""What each part may import: the engine knows no server, and a client machine needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def _imported(statement: str) -> set[str]:
    """Top-level modules loaded after the statement, in a fresh interpreter."""
    script = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import rose_backend.engine, rose_backend.service", {"tritonclient", "triton_python_backend_utils"}),
        ("import rose_backend.engine", {"rose_ensemble", "rose_client"}),
        ("import rose_backend.packer, rose_backend.core, rose_backend.admission, rose_backend.service", {"torch"}),
        ("import rose_ensemble.tokenize_step", {"torch", "transformers", "tritonclient", "rose_client"}),
        (
            "import rose_ensemble.engine_tracing as e, rose_ensemble.tracing as t; t.open_tracing('rose', {})",
            {"opentelemetry", "torch", "tokenizers"},
        ),
        ("import rose_client.gateway.app", {"torch", "tokenizers"}),
        ("import rose_client", {"torch", "tokenizers", "rose_backend", "rose_ensemble"}),
        ("import rose_client.cli.main", {"torch", "tokenizers", "transformers"}),
    ],
)
def test_imports(statement: str, absent: set[str]) -> None:
    assert _imported(statement) & absent == set()


@pytest.mark.parametrize(("told", "found"), [(None, "passive"), ("active", "active")])
def test_openmp_is_told_to_wait_quietly_before_torch_is_there(told: str | None, found: str) -> None:
    script = "import sys, os, rose_backend; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if told is not None:
        environment["OMP_WAIT_POLICY"] = told
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.split() == [found, "False"]
