"""Starting servers as users do: plain tritonserver on the checked-in repository, `rose serve`, `rose demo`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose_client import RoseClient
from rose_ensemble.server_process import Endpoints
from rose_ensemble.tritonserver import find_server
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_ROSE = [sys.executable, "-m", "rose_client.cli"]


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


@contextmanager
def _serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`rose serve` on free ports; yields the process and the addresses it printed."""
    ports = [option for kind in ("http", "grpc", "metrics") for option in (f"--{kind}-port", "0")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*_ROSE, "serve", "--repository", str(folder / "repository"), *ports, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        addresses: dict[str, str] = {}
        for line in process.stdout:
            found = re.match(r"\s+(gRPC|HTTP|metrics)\s+(?:http://)?(\S+)", line)
            if found:
                addresses[found[1]] = found[2]
            if line.startswith("try:"):
                break
        assert set(addresses) == {"gRPC", "HTTP", "metrics"}, (folder / "log").read_text()[-3000:]
        yield process, addresses
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_serve_embed_and_stop_with_work_in_flight(oracle: Oracle, minilm: Path, tmp_path: Path) -> None:
    with _serving(tmp_path, "--checkpoint", str(minilm), "--name", "mini", "--device", "cpu") as (process, at):
        embed = subprocess.run(
            [*_ROSE, "embed", "--url", at["gRPC"], "--model", "mini", "tea", "pot"],
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

        texts = ["stone " * 100] * 60
        answers: list[object] = []
        with RoseClient(at["gRPC"], "mini") as client:
            worker = threading.Thread(target=lambda: answers.append(client.embed(texts)))
            worker.start()
            wait_until(lambda: _counter(at["metrics"], "rose_sequences_total") > 5, "the engine is at work")
            process.send_signal(signal.SIGTERM)
            worker.join(60)
        assert len(answers) == 1
        assert_close(answers[0], oracle.vectors(texts))
        assert process.wait(60) == 0


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


def _counter(metrics: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{metrics}", timeout=5) as answer:
        page = answer.read().decode()
    found = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name + "{")]
    return sum(map(float, found))


pytestmark = pytest.mark.timeout(200)
