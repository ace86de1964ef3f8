"""`rose gateway` and the gateway beside `rose serve`: keys, ports, and ending together."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from rose_client.cli.gateway_process import GatewayFailedError, GatewayProcess, require_packages
from rose_client.cli.main import app
from rose_client.gateway import server
from rose_client.gateway.merging import MergePolicy
from rose_client.hedging import HedgePolicy
from rose_ensemble.server_process import Endpoints
from tests.support.fake_triton import FakeTriton, fake_triton
from tests.support.processes import processes_mentioning, rose_command, running
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    with fake_triton() as fake:
        yield fake


class _Server:
    """What a gateway knows of its server."""

    def __init__(self, grpc_port: int) -> None:
        self.endpoints = Endpoints("127.0.0.1", 0, grpc_port, 0)
        self.stopping = threading.Event()

    def ask_to_end(self) -> None:
        self.stopping.set()

    def drain_after(self, front: subprocess.Popen[Any]) -> None:
        self.front = front


def test_keys_of_a_file_and_the_environment(fake: FakeTriton, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n\nbeta \n")
    command = rose_command("gateway", f"--url={fake.url}", "--port=0", f"--api-key-file={keys}")
    with running(command, tmp_path / "log", {"ROSE_GATEWAY_API_KEY": "gamma", "TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        for key, status in (("alpha", 200), ("beta", 200), ("gamma", 200), ("delta", 401)):
            answer = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=60)
            assert answer.status_code == status
        process.terminate()
        assert process.wait(60) in (0, -15, 143)
    assert "alpha" not in (tmp_path / "log").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"keys", "log"}


@pytest.mark.slow
def test_workers_share_a_port_and_count_together(fake: FakeTriton, tmp_path: Path) -> None:
    command = rose_command("gateway", f"--url={fake.url}", "--port=0", "--workers=2")
    with running(command, tmp_path / "log", {"TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        for _ in range(20):  # each on a connection of its own
            assert httpx.post(f"{url}/embed", json={"inputs": "tea"}, timeout=60).status_code == 200
        counted = 'rose_gateway_requests_total{route="/embed",status="200"} 20.0'  # once the answers have left
        wait_until(lambda: counted in httpx.get(f"{url}/metrics", timeout=60).text, "all requests are counted")
        process.terminate()
        process.wait(60)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_cache_hedging_and_merging_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two are off unless asked for; the workers' caches add up to what was asked for."""
    found: list[tuple[int, HedgePolicy | None, MergePolicy | None]] = []
    monkeypatch.setattr(
        "rose_client.gateway.server.run",
        lambda config, *_: found.append((config.cache_bytes, config.hedging, config.merging)),
    )
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")  # set for two workers, and put back afterwards
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    for options in ([], ["--cache-mib=8", "--workers=2"], ["--hedge-percent=5"], ["--no-merge"]):
        assert CliRunner().invoke(app, ["gateway", "--port=0", *options]).exit_code == 0
    merged = MergePolicy()
    assert found == [
        (0, None, merged),
        (4 * 2**20, None, merged),
        (0, HedgePolicy(0.05, 95.0), merged),
        (0, None, None),
    ]


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), ("\n", "holds no key")])
def test_a_key_file_without_keys_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_text(content)
    result = CliRunner().invoke(app, ["gateway", f"--api-key-file={keys}"])
    assert result.exit_code == 1
    assert message in result.stderr


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_GATEWAY_API_KEY", "")
    result = CliRunner().invoke(app, ["gateway"])
    assert result.exit_code == 1
    assert "ROSE_GATEWAY_API_KEY is empty" in result.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["gateway", f"--port={port}"])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvloop" else found(name))
    with pytest.raises(GatewayFailedError, match=r"rose-on-triton\[gateway\].*uvloop missing"):
        require_packages()


@pytest.mark.slow
def test_it_ends_with_its_server(fake: FakeTriton) -> None:
    server: Any = _Server(fake.port)
    with GatewayProcess(server, 0, None) as gateway:
        url = gateway.wait_until_listening()
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        server.stopping.set()
        gateway.require_success()
    assert processes_mentioning(f"--url={fake.url}") == []


@pytest.mark.slow
def test_its_end_ends_the_server(fake: FakeTriton) -> None:
    server: Any = _Server(fake.port)
    with GatewayProcess(server, 0, None) as gateway:
        gateway.wait_until_listening()
        gateway._process.kill()
        wait_until(server.stopping.is_set, "the server is asked to end")
        with pytest.raises(GatewayFailedError, match="with status -9"):
            gateway.require_success()


_BROKEN = """
import rose_client.gateway.server as server
from rose_client.cli.main import app

def broken(config):
    raise RuntimeError("no application today")

broken.__module__, broken.__qualname__ = "broken_gateway", "broken"  # as which the workers find it
server._app_of_process = broken
if __name__ == "__main__":
    import sys
    sys.modules["broken_gateway"] = sys.modules["__main__"]
    app()
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_cannot_start_end_the_command(tmp_path: Path, workers: int) -> None:
    """Nobody is told an address where nobody will ever answer."""
    (tmp_path / "broken_gateway.py").write_text(_BROKEN)
    command = [sys.executable, str(tmp_path / "broken_gateway.py"), "gateway", "--port=0", f"--workers={workers}"]
    with running(command, tmp_path / "log") as process:
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.wait(60) == 1
    log = (tmp_path / "log").read_text()
    assert "no application today" in log
    assert ("a worker ended with status 1 before the gateway answered" in log) == (workers > 1)


@pytest.mark.slow
def test_a_gateway_that_cannot_start_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server: Any = _Server(1)
        with (
            GatewayProcess(server, taken.getsockname()[1], None) as gateway,
            pytest.raises(GatewayFailedError, match="status 1 before it was ready"),
        ):
            gateway.wait_until_listening()


def test_a_worker_that_cannot_be_replaced_is_a_failure() -> None:
    """uvicorn ends all workers then, as if it had been asked to; whoever restarts what failed must be told."""
    listener = server.listen("127.0.0.1", 0)
    watch = server._Watch(listener, lambda: None)
    supervisor = server._Supervisor(server._settings(lambda: None, 2), listener, watch)  # type: ignore[arg-type, return-value]
    dead = SimpleNamespace(pid=1, exitcode=3, is_alive=lambda timeout: False, kill=lambda: None, join=lambda: None)
    supervisor.processes = [dead]  # type: ignore[list-item]
    watch.is_answering = True
    supervisor.keep_subprocess_alive()
    listener.close()
    assert supervisor.should_exit.is_set()
    assert supervisor.failure == "a worker could not be replaced: the new one failed to start"
