"""Fixtures of all tests. One server and one oracle serve the whole session; tests/unit asks for no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT, resolve_checkpoint
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess, ServerStartError
from rose_ensemble.tritonserver import find_server
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.wire import RawGrpc, RawHttp

_LOG_LINES_SHOWN = 40
_SERVER_TESTS = Path(__file__).parent / "server"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _SERVER_TESTS in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The default checkpoint's folder: real all-MiniLM-L6-v2 weights."""
    return resolve_checkpoint(DEFAULT_CHECKPOINT)


@pytest.fixture(scope="session")
def oracle(minilm: Path) -> Oracle:
    """Right vectors, from sentence-transformers."""
    return Oracle(minilm)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `server` serves."""
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A tritonserver with the default pipeline on free ports."""
    store = Repository(repository)
    pipeline = Pipeline()
    store.add(pipeline)
    log_path = tmp_path_factory.mktemp("log") / "tritonserver.log"
    with log_path.open("wb") as log:
        process = ServerProcess(find_server(), store.folder, [pipeline.name], Endpoints.free("127.0.0.1"), log)
        with process:
            try:
                process.wait_until_ready()
            except ServerStartError as error:
                tail = log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
                pytest.fail("\n".join([str(error), *tail]))
            yield process.endpoints


@pytest.fixture(scope="session")
def grpc_client(server: Endpoints) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(scope="session")
def http_client(server: Endpoints) -> Iterator[httpclient.InferenceServerClient]:
    with httpclient.InferenceServerClient(server.http) as client:
        yield client


@pytest.fixture(scope="session")
def raw_grpc(server: Endpoints) -> Iterator[RawGrpc]:
    with RawGrpc(server.grpc) as raw:
        yield raw


@pytest.fixture(scope="session")
def raw_http(server: Endpoints) -> RawHttp:
    return RawHttp(server.http)


@pytest.fixture(scope="session")
def counters(server: Endpoints) -> Counters:
    """The server's metrics page."""
    return Counters(f"http://{server.metrics}/metrics")
