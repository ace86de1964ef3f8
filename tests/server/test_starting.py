"""Starting servers as users do: plain tritonserver on the checked-in repository, `rose serve`, `rose demo`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient

from rose_client import RoseClient
from rose_ensemble.server_process import Endpoints
from rose_ensemble.tritonserver import find_server
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.serving import serving
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.support.wire import RawHttp, text_input

_ROOT = Path(__file__).parents[2]
_ROSE = [sys.executable, "-m", "rose_client.cli"]


def _has_ipv6() -> bool:
    """Whether this machine has the loopback address of IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_checked_in_repository_under_plain_tritonserver(oracle: Oracle, tmp_path: Path) -> None:
    server, ports = find_server(), Endpoints.free("127.0.0.1")
    command = [
        str(server.executable),
        f"--model-repository={_ROOT / 'model_repository'}",
        *([f"--backend-directory={server.backends}"] if server.backends else []),
        *(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")),
        f"--http-port={ports.http_port}",
        f"--grpc-port={ports.grpc_port}",
        f"--metrics-port={ports.metrics_port}",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **server.environment}, stdout=log, stderr=log)
    try:
        wait_until(lambda: _is_ready(ports.http) or process.poll() is not None, "tritonserver is ready")
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        with RoseClient(ports.grpc) as client:
            assert_close(client.embed(["tea"]), oracle.vectors(["tea"]))
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_serve_embed_and_stop_with_work_in_flight(oracle: Oracle, minilm: Path, tmp_path: Path) -> None:
    options = ("--checkpoint", str(minilm), "--name", "mini", "--device", "cpu")
    with serving(tmp_path, *options, "--probe-interval=600") as served:  # so that requests can be counted
        embed = subprocess.run(
            [*_ROSE, "embed", "--url", served.grpc, "--model", "mini", "tea", "pot"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        records = [json.loads(line) for line in embed.stdout.splitlines()]
        assert [record["text"] for record in records] == ["tea", "pot"]
        assert [record["tokens"] for record in records] == [3, 3]
        assert_close([record["embedding"] for record in records], oracle.vectors(["tea", "pot"]))
        assert sorted(folder.name for folder in (tmp_path / "repository").iterdir()) == [
            "mini",
            "mini_rose",
            "mini_tokenize",
        ]

        texts, counters = ["stone " * 100] * 8, Counters(f"http://{served.metrics}/metrics")

        def admitted() -> int:
            return counters.read("nv_inference_request_success", model="mini_tokenize")

        before = admitted()
        with ThreadPoolExecutor(4) as pool, grpcclient.InferenceServerClient(served.grpc) as client:
            over_grpc = [pool.submit(client.infer, "mini", [text_input(grpcclient, texts)]) for _ in range(2)]
            over_http = [pool.submit(RawHttp(served.http).post, *_http_infer("mini", texts)) for _ in range(2)]
            wait_until(lambda: admitted() == before + 4, "all four are past the tokenizer")
            served.process.send_signal(signal.SIGTERM)
            for answer in over_grpc:
                assert_close(answer.result(120).as_numpy("EMBEDDING")[0], oracle.vectors(texts))
            for answer in over_http:
                status, body = answer.result(120)
                assert status == 200
                assert_close(_vectors(body), oracle.vectors(texts))
        assert served.process.wait(60) == 0


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 loopback")
@pytest.mark.slow
def test_ipv6(oracle: Oracle, tmp_path: Path) -> None:
    with serving(tmp_path, "--host=::1", "--device=cpu") as served:
        for address in (served.http, served.grpc, served.metrics):
            assert re.fullmatch(r"\[::1\]:\d+", address)
        _, body = RawHttp(served.http).post(*_http_infer("embed", ["tea"]))
        assert_close(_vectors(body), oracle.vectors(["tea"]))
        with RoseClient(served.grpc) as client:
            assert_close(client.embed(["tea"]), oracle.vectors(["tea"]))
        assert Counters(f"http://{served.metrics}/metrics").read("nv_inference_count", model="embed") > 0


@pytest.mark.slow
def test_taken_port_and_missing_checkpoint_are_said_plainly(server: Endpoints, tmp_path: Path) -> None:
    base = [*_ROSE, "serve", "--repository", str(tmp_path)]
    for options, words in (
        (["--http-port", str(server.http_port)], ["cannot listen", str(server.http_port)]),
        (["--checkpoint", str(tmp_path / "none")], ["none", "not a folder"]),
        (["--device", "tpu"], ["tpu", "cuda:N"]),
    ):
        run = subprocess.run([*base, *options], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 1
        for word in words:
            assert word in run.stderr


def test_demo() -> None:
    run = subprocess.run([*_ROSE, "demo"], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert "10 sentences -> 384-dimensional vectors" in run.stdout
    rows = [line for line in run.stdout.splitlines() if "A kitten naps by the heater." in line]
    assert rows, run.stdout
    assert re.search(r"\b6\s+0\.6\d", rows[0])  # the other cat


def _is_ready(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/v2/health/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _http_infer(model: str, texts: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1, len(texts)], "data": list(texts)}
    return f"/v2/models/{model}/infer", {"inputs": [tensor]}


def _vectors(body: dict[str, Any]) -> npt.NDArray[np.float32]:
    output = next(output for output in body["outputs"] if output["name"] == "EMBEDDING")
    return np.array(output["data"], np.float32).reshape(output["shape"])[0]


pytestmark = pytest.mark.timeout(200)
