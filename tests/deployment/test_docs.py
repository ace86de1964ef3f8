"""The documentation: it builds without a warning, and what is made from the code is up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rose_backend.models.registry import _MODELS
from tests.deployment.conftest import ROOT


def test_the_configuration_reference_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "config_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_configuration_reference_finds_every_field() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert "| `max_tokens` | `int` | `2097152` | tokens that may wait; requests beyond them are refused. |" in page
    assert "| `--probe-interval` | `5.0` |" in page


def test_the_table_of_models_is_that_of_the_registry() -> None:
    table = (ROOT / "docs" / "models.md").read_text()
    named = {name for line in table.splitlines() if line.startswith("| `") for name in _names(line)}
    assert named - {"model_type"} == set(_MODELS)


def _names(line: str) -> list[str]:
    return re.findall(r"`([\w-]+)`", line.split("|")[1])


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install 'rose-on-triton[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "configuration" / "index.html").is_file()
