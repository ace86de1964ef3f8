"""`rose search` and `rose embed FILE` before a real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rose_client.cli.main import app
from rose_ensemble.server_process import Endpoints
from tests.support.cases import HARBOUR
from tests.support.oracle import Oracle
from tests.support.texts import make_texts
from tests.support.vectors import assert_close


def test_the_closest_paragraphs(server: Endpoints, oracle: Oracle, tmp_path: Path) -> None:
    (tmp_path / "boats.txt").write_text(f"The news of today.\n\n{HARBOUR}\n")
    (tmp_path / "kitchen.md").write_text("Sourdough needs a starter.\n\nBake the bread\nuntil the crust is dark.\n")
    query = "When do ships sail?"
    arguments = ["search", str(tmp_path), query, "--top-n=2", f"--url={server.grpc}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    score, place = lines[0].split()
    assert (place, lines[1].strip()) == ("boats.txt:3", HARBOUR)
    assert abs(float(score) - float(oracle.vector(query) @ oracle.vector(HARBOUR))) < 6e-4
    assert float(lines[2].split()[0]) <= float(score)


@pytest.mark.slow
def test_a_files_vectors(server: Endpoints, oracle: Oracle, tmp_path: Path) -> None:
    texts = make_texts(20, longest=10, seed=6) * 15
    (tmp_path / "in.txt").write_text("\n".join(texts))
    arguments = ["embed", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy"), f"--url={server.grpc}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert_close(np.load(tmp_path / "out.npy"), oracle.vectors(texts))
