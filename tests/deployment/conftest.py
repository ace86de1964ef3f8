"""Where the files are, and the tools that read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.debian import program

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
CHART = DOCKER / "helm" / "rose"


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("debian")


@pytest.fixture(scope="session")
def promtool(debian: Path) -> Path:
    return program("promtool", "prometheus", debian)


@pytest.fixture(scope="session")
def prometheus(debian: Path) -> Path:
    return program("prometheus", "prometheus", debian)
