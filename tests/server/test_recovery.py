"""`rose serve` brings a model back whose process died or stopped, and says so when it cannot.

As in triton-inference-server/server#8604, #7862, #8552 (dead stub, health still 200), #4828, #2607, #5841 (reload).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from rose_ensemble.engine_settings import EngineSettings
from rose_ensemble.health import HealthPolicy
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.probe import read_batches
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.supervisor import Supervisor
from rose_ensemble.triton_http import TritonHttp
from rose_ensemble.tritonserver import find_server
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.serving import Serving, serving
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.support.wire import RawGrpc, RawHttp, embed, text_tensor

pytestmark = pytest.mark.timeout(400)

_TEA = text_tensor(["tea"], [1, 1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server that survives what the tests below do to it, and in the end stops in order all the same."""
    with serving(tmp_path_factory.mktemp("serve"), "--probe-interval=0.5") as found:
        yield found
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(100) == 0


@pytest.mark.parametrize(
    ("model", "number"),
    [
        ("rose", signal.SIGKILL),
        pytest.param("tokenize", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("tokenize", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_model_comes_back(served: Serving, oracle: Oracle, model: str, number: signal.Signals) -> None:
    http, before, told = RawHttp(served.http), served.tritonserver(), served.log.count("model recovered")
    with _statuses(f"http://{served.http}/v2/models/embed/ready") as seen:
        served.send_signal(model, number)
        status, answer = http.infer(["tea"], [1, 1])
        assert status in (404, 500, 503), answer
        wait_until(lambda: http.infer(["tea"], [1, 1])[0] == 200, "the model answers again", seconds=120)
        wait_until(lambda: served.log.count("model recovered") > told, "the recovery is told")
        wait_until(lambda: seen[-1] == 200, "the model is ready", seconds=20)  # who answers again may be asked only now
    assert 400 in seen
    assert served.tritonserver() == before
    _, answer = http.infer(["tea"], [1, 1])
    vector = next(output["data"] for output in answer["outputs"] if output["name"] == "EMBEDDING")
    assert_close(np.array(vector, np.float32), oracle.vector("tea"))
    failed = re.findall(r"^model failed: model=embed cause=(.*)$", served.log, re.MULTILINE)
    assert len(failed) == told + 1
    assert "is not healthy" in failed[-1]
    assert re.findall(r"^model recovered: model=embed seconds=\d+\.\d tries=\d+$", served.log, re.MULTILINE)


@pytest.mark.parametrize(
    "model", ["rose", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tokenize", "embed"))]
)
@pytest.mark.slow
def test_reload_under_load_loses_nothing(served: Serving, oracle: Oracle, model: str) -> None:
    """A changed file makes Triton load again; requests meanwhile wait or are answered by the old processes."""
    changed = "1/model.py" if model != "embed" else "config.pbtxt"
    old, failures = served.stub("rose"), served.log.count("model failed")
    stop = threading.Event()
    with ThreadPoolExecutor(4) as pool, RawGrpc(served.grpc) as raw:

        def work() -> list[object]:
            answers: list[object] = []
            while not stop.is_set():
                answers.append(raw.infer([_TEA])["EMBEDDING"][0, 0])
            return answers

        workers = [pool.submit(work) for _ in range(4)]
        try:
            for _ in range(2):
                (served.folder / "repository" / model / changed).touch()
                status, body = TritonHttp(*_address(served.http)).post(f"/v2/repository/models/{model}/load", {}, 120)
                assert status == 200, body
        finally:
            stop.set()
        answers = [answer for worker in workers for answer in worker.result(120)]
    assert len(answers) >= len(workers)
    for answer in answers:
        assert_close(answer, oracle.vector("tea"))
    assert served.log.count("model failed") == failures
    if model == "rose":
        wait_until(lambda: not Path(f"/proc/{old}").exists(), "the old process is gone")


@pytest.mark.parametrize("model", ["rose", pytest.param("tokenize", marks=pytest.mark.slow)])
def test_what_was_loaded_by_name_comes_back_time_and_again(served: Serving, model: str) -> None:
    """Triton does not unload such a step with the ensemble, and a dead one would stay in its place."""
    http, admin = RawHttp(served.http), TritonHttp(*_address(served.http))
    (served.folder / "repository" / model / "1/model.py").touch()
    assert admin.post(f"/v2/repository/models/{model}/load", {}, 120)[0] == 200
    for killed in ("tokenize", "rose"):
        wanted = served.log.count("model recovered") + 1
        served.send_signal(killed, signal.SIGKILL)
        wait_until(partial(_recovered, served, wanted), "the recovery is told", seconds=120)
        assert http.infer(["tea"], [1, 1])[0] == 200


def _recovered(served: Serving, times: int) -> bool:
    return served.log.count("model recovered") == times


@pytest.mark.slow
def test_a_model_unloaded_on_purpose_stays_unloaded(served: Serving) -> None:
    http, admin = RawHttp(served.http), TritonHttp(*_address(served.http))
    failures = served.log.count("model failed")
    assert admin.post("/v2/repository/models/embed/unload", {"parameters": {"unload_dependents": True}}, 60)[0] == 200
    with _statuses(f"http://{served.http}/v2/models/embed/ready") as seen:
        wait_until(lambda: len(seen) > 30, "several probes have been refused")
    assert set(seen) == {400}
    assert admin.post("/v2/repository/models/embed/load", {}, 120)[0] == 200
    assert http.infer(["tea"], [1, 1])[0] == 200
    assert served.log.count("model failed") == failures


@pytest.mark.slow
def test_one_dead_engine_of_two(oracle: Oracle, tmp_path: Path) -> None:
    """Triton serves the two in turn, so every second request fails; both are new afterwards."""
    with serving(tmp_path, "--device=cpu,cpu", "--probe-interval=0.5") as served:
        http = RawHttp(served.http)
        served.send_signal("rose", signal.SIGKILL)
        wait_until(lambda: "model recovered" in served.log, "the model is back", seconds=120)
        assert [http.infer(["tea"], [1, 1])[0] for _ in range(6)] == [200] * 6
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(100) == 0


@pytest.mark.slow
def test_sigterm_during_recovery(tmp_path: Path) -> None:
    with serving(tmp_path, "--probe-interval=0.5") as served:
        served.send_signal("tokenize", signal.SIGKILL)
        wait_until(lambda: "model failed" in served.log, "the failure is noticed")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(100) == 0
        assert "model recovered" not in served.log


@pytest.mark.slow
def test_unrecoverable_failure_ends_the_server(minilm: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(minilm, checkpoint)
    with serving(tmp_path, f"--checkpoint={checkpoint}", "--name=mini", "--probe-interval=0.5") as served:
        (checkpoint / "model.safetensors").rename(tmp_path / "elsewhere")
        served.send_signal("mini_rose", signal.SIGKILL)
        assert served.process.wait(200) == 1
        last = served.log.rstrip().splitlines()[-1]
        assert last.startswith("error: model 'mini' failed, 3 reloads in vain; last: ")
        assert "model.safetensors" in last


@pytest.mark.slow
def test_a_server_killed_from_outside_ends_the_command(tmp_path: Path) -> None:
    """With work under way, whose answers nobody will take: no process may be left that waits for that."""
    with serving(tmp_path, "--probe-interval=0.5") as served, ThreadPoolExecutor(1) as pool:
        counters = Counters(f"http://{served.metrics}/metrics")
        tokens = counters.read("rose_tokens_total")
        lost = pool.submit(RawGrpc(served.grpc).infer, [text_tensor(["stone " * 100] * 150, [1, 150])])
        wait_until(lambda: counters.read("rose_tokens_total") > tokens + 200, "the engine is at work")
        (server,) = served.tritonserver()
        os.kill(server, signal.SIGKILL)
        assert served.process.wait(60) != 0
        with pytest.raises(grpc.RpcError):
            lost.result()


def test_progress_is_read_from_the_metrics_page(server: Endpoints, counters: Counters, raw_grpc: RawGrpc) -> None:
    raw_grpc.infer([_TEA])
    metrics = TritonHttp(server.host, server.metrics_port)
    # Counters follow a little after the answer.
    wait_until(lambda: bool(read_batches(metrics, "rose")), "a batch is counted")
    wait_until(
        lambda: read_batches(metrics, "rose") == counters.read("rose_batches_total", model="rose"),
        "both readings are the same",
    )
    assert read_batches(metrics, "ros") is None
    assert read_batches(TritonHttp(server.host, 1), "rose") is None


@pytest.mark.slow
def test_a_busy_engine_is_not_taken_for_a_dead_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The probe waits behind work of many seconds, and the limit is a few."""
    hang = 2.0
    store, pipeline = (
        Repository(tmp_path / "repository"),
        Pipeline(devices=("cpu",), engine=EngineSettings(lanes="off")),
    )
    store.add(pipeline)
    endpoints = Endpoints.free("127.0.0.1")
    with (
        (tmp_path / "log").open("wb") as log,
        ServerProcess(find_server(), store.folder, [pipeline.name], endpoints, log) as server,
    ):
        server.wait_until_ready()
        supervisor = Supervisor(server, [pipeline], HealthPolicy(interval=0.1, hang=hang))
        supervisor.wait_until_answering()
        shapes: list[object] = []
        began = time.monotonic()

        def work() -> None:
            try:
                with grpcclient.InferenceServerClient(endpoints.grpc) as client:
                    shapes.append(embed(client, ["stone " * 100] * 600).vectors.shape)
            finally:
                server.terminate()

        worker = threading.Thread(target=work)
        worker.start()
        with caplog.at_level(logging.WARNING):
            assert supervisor.run() == 0
        worker.join()
        assert time.monotonic() - began > 2 * hang
    assert shapes == [(1, 600, 384)]
    assert caplog.messages == []


@contextmanager
def _statuses(url: str) -> Iterator[list[int]]:
    """What the address answers, asked again and again beside the block.

    By several: one of them may share a thread of Triton's front end with the request to load, and wait for its end.
    """
    seen: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    seen.append(answer.status)
            except urllib.error.HTTPError as refusal:
                seen.append(refusal.code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition(":")
    return host, int(port)
