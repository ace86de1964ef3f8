"""`docker/install.sh`, which both images call, in an environment that holds nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.deployment.conftest import DOCKER, ROOT
from tests.support.oracle import Oracle
from tests.support.processes import running
from tests.support.vectors import assert_close

_TEXT = "The ferry leaves at dawn."
_BODY = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [_TEXT]}]}


@pytest.mark.parametrize("arguments", [[], ["."], [".", "venv", "client"]])
def test_it_says_how_it_is_called(arguments: list[str]) -> None:
    done = subprocess.run(["bash", str(DOCKER / "install.sh"), *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "install.sh SOURCE VENV gpu|server" in done.stderr


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_what_it_installs_serves(tmp_path: Path, oracle: Oracle) -> None:
    torch = importlib.metadata.version("torch").partition("+")[0]
    environment = {**os.environ, "TORCH": f"torch=={torch}", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ""}
    command = ["bash", str(DOCKER / "install.sh"), str(ROOT), str(tmp_path / "rose"), "server"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    serve = [str(tmp_path / "rose" / "bin" / "rose"), "serve", f"--repository={tmp_path / 'repository'}"]
    serve += [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    with running(serve, tmp_path / "log", environment) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("try:"):
                break
        found = re.search(r"HTTP\s+(http://\S+)", "".join(lines))
        assert found, (tmp_path / "log").read_text()[-3000:]
        request = urllib.request.Request(f"{found[1]}/v2/models/embed/infer", data=json.dumps(_BODY).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            outputs = {output["name"]: output for output in json.load(answer)["outputs"]}
    vector = np.array(outputs["EMBEDDING"]["data"], np.float32)
    assert_close(vector, oracle.vector(_TEXT))
