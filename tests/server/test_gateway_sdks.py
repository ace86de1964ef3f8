"""Other people's clients, as installed from PyPI, unchanged before the gateway; and schemathesis before its OpenAPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rose_ensemble.server_process import Endpoints
from tests.support.gateways import running_gateway
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # they download and install packages

_ENVIRONMENT = {"HAYSTACK_TELEMETRY_ENABLED": "False"}
_SCRIPT = Path(__file__).parents[1] / "support" / "sdk_calls.py"
_TEXTS = ["The ferry leaves at dawn.", "tea"]
_KEY = "a-key"
_CLIENTS = (
    "cohere",
    "haystack-ai",
    "langchain-huggingface",
    "langchain-openai",
    "llama-index-embeddings-openai",
    "llama-index-embeddings-text-embeddings-inference",
    "openai",
)


def _environment(folder: Path, *packages: str) -> Path:
    """Programs of a new virtual environment with the packages."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *packages], check=True, timeout=900)
    return folder / "bin"


@pytest.fixture(scope="module")
def gateway(server: Endpoints) -> Iterator[httpx.Client]:
    with running_gateway(server.grpc, api_keys=(_KEY,)) as client:
        yield client


@pytest.fixture(scope="module")
def returned(gateway: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each client's calls returned."""
    programs = _environment(tmp_path_factory.mktemp("clients") / "venv", *_CLIENTS)
    url = str(gateway.base_url).rstrip("/")
    command = [str(programs / "python"), str(_SCRIPT), url, _KEY]
    environment = {**os.environ, **_ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_openai(returned: dict[str, Any], oracle: Oracle) -> None:
    found = returned["openai_sdk"]
    assert np.shape(found["default"]) == (2, 384)  # the client asks for base64 by itself
    assert_close(found["default"], oracle.vectors(_TEXTS))
    assert_close(found["float"], oracle.vectors(_TEXTS))
    assert found["tokens"] == sum(map(oracle.token_count, _TEXTS))
    assert found["models"] == ["embed"]
    assert found["error"] == "model_not_found"


def test_cohere(returned: dict[str, Any], oracle: Oracle) -> None:
    found = returned["cohere_sdk"]
    assert_close(found["float"], oracle.vectors(_TEXTS))
    assert [index for index, _ in found["ranking"]] == [1, 2]
    expected = oracle.vectors(["tea", "a pot of tea"]) @ oracle.vector("tea")
    assert_close([score for _, score in found["ranking"]], expected)


@pytest.mark.parametrize(
    "client", ["langchain_openai", "langchain_huggingface", "llama_index_openai", "llama_index_tei", "haystack"]
)
def test_frameworks(returned: dict[str, Any], oracle: Oracle, client: str) -> None:
    assert_close(returned[client]["documents"], oracle.vectors(_TEXTS))
    assert_close(returned[client]["query"], oracle.vector("tea"))


def test_the_recipes_of_the_documentation(returned: dict[str, Any], oracle: Oracle) -> None:
    found = returned["recipes"]
    assert found["blocks"] == 8
    assert_close(found["vectors"], oracle.vectors(["The ferry leaves at dawn.", "Bake the bread."]))
    assert found["best"] == 1  # of the documents the pot of tea
    assert found["found"] == ["The ferry leaves at dawn."] * 3  # LangChain, LlamaIndex, Haystack


def test_schemathesis_finds_no_server_error(gateway: httpx.Client, tmp_path: Path) -> None:
    """Requests drawn from the gateway's own OpenAPI, valid and not."""
    programs = _environment(tmp_path / "venv", "schemathesis>=4")
    url = str(gateway.base_url.join("/openapi.json"))
    options = ["--checks=not_a_server_error", "--max-examples=30", "--seed=1", f"--header=Authorization: Bearer {_KEY}"]
    command = [str(programs / "schemathesis"), "run", url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
