"""Locust against the real server: every protocol, several processes, comparison, and the whole of `make loadtest`."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("locust") is None:  # found, not imported: that would put gevent under all tests
    pytest.skip("pip install 'rose-on-triton[loadtest]'", allow_module_level=True)

from loadtests.traffic.own_server import Served, own_server
from loadtests.traffic.running import LoadError, ScoreTarget, Target, run_plan
from loadtests.traffic.samples import BULK, OK, ONLINE, SCORE, read_samples
from rose_ensemble.server_process import Endpoints
from tests.support.prometheus import Counters
from tests.support.rerankers import make_bert_reranker

_LOADTESTS = Path(__file__).parents[2] / "loadtests"
_PLAN = "2x10,2x10+bulk"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_everything_sent_is_answered_and_counted(server: Endpoints, counters: Counters, kind: str) -> None:
    sequences, tokens = counters.read("rose_sequences_total"), counters.read("rose_tokens_total")
    target = Target(kind, getattr(server, kind), "embed", f"http://{server.metrics}/metrics")
    run = run_plan(target, _PLAN, bulk_jobs=1)
    assert {sample.outcome for sample in run.samples} == {OK}
    assert {sample.traffic for sample in run.samples} == {ONLINE, BULK}
    assert all(sample.texts == (1 if sample.traffic == ONLINE else 100) for sample in run.samples)
    assert all(sample.phase == 1 for sample in run.samples if sample.traffic == BULK)
    # What the server counted is what locust says that it sent, and what the answers say of tokens.
    assert counters.read("rose_sequences_total") - sequences == sum(sample.texts for sample in run.samples)
    assert counters.read("rose_tokens_total") - tokens == sum(sample.tokens for sample in run.samples)
    assert run.readings[-1].tokens >= run.readings[0].tokens


@pytest.mark.slow
def test_a_model_that_is_not_there_fails_and_is_not_called_busy(server: Endpoints) -> None:
    run = run_plan(Target("grpc", server.grpc, "nobody"), "2x10")
    assert {sample.outcome for sample in run.samples} == {"failed"}


@pytest.mark.slow
def test_a_server_that_is_not_there_fails_and_is_not_called_busy() -> None:
    host = Endpoints.free("127.0.0.1").grpc
    run = run_plan(Target("grpc", host, "embed"), "2x10", timeout=2)
    assert {sample.outcome for sample in run.samples} == {"failed"}


@pytest.mark.slow
def test_the_load_stops_with_the_server() -> None:
    """Nobody waits six minutes for a report on a server that ended in the first."""
    nowhere = Endpoints.free("127.0.0.1").grpc
    target = Target("grpc", nowhere, "embed", f"http://{nowhere}/metrics")
    began = time.monotonic()
    with pytest.raises(LoadError, match="the server ended"):
        run_plan(target, "300x1+bulk", processes=2)
    assert time.monotonic() - began < 60


def test_a_bad_plan_is_named_before_anything_runs(server: Endpoints) -> None:
    with pytest.raises(ValueError, match="plan part 'x'"):
        run_plan(Target("grpc", server.grpc, "embed"), "x")
    with pytest.raises(LoadError, match="'smtp' is not one of"):
        Target("smtp", server.grpc, "embed")


def test_a_connection_is_closed_once() -> None:
    """Under gevent gRPC counts channels, and waits for ever at the end for one that was closed twice."""
    code = """
import gc
from grpc._channel import Channel
from traffic.endpoints import TritonGrpc
closed, close = [], Channel.close
Channel.close = lambda channel: (closed.append(channel), close(channel))
endpoint = TritonGrpc("127.0.0.1:1", "embed", 1.0)
endpoint.close()
del endpoint
gc.collect()
print(len(closed))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=_LOADTESTS, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


class _Handler(BaseHTTPRequestHandler):
    """`/v1/embeddings` that refuses every fourth request."""

    protocol_version = "HTTP/1.1"
    calls = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "any"
        type(self).calls += 1
        vector = base64.b64encode(np.zeros(8, np.float32).tobytes()).decode()
        words = sum(len(text.split()) for text in body["input"])
        data = [{"object": "embedding", "index": i, "embedding": vector} for i in range(len(body["input"]))]
        answer = {"object": "list", "data": data, "usage": {"prompt_tokens": words, "total_tokens": words}}
        content = json.dumps(answer).encode()
        self.send_response(429 if type(self).calls % 4 == 0 else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def openai_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{stub.server_port}/v1/embeddings"
        stub.shutdown()


@pytest.mark.slow
def test_comparison_prints_both_columns(server: Endpoints, openai_url: str, tmp_path: Path) -> None:
    command = [sys.executable, str(_LOADTESTS / "loadtest.py"), "compare", "--plan", "3x12", "--host", server.grpc]
    command += ["--other", "stub", "any", openai_url, "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["rose"][0] == "stub"
    assert rows["requests"][0] == rows["requests"][1]  # the same traffic for both
    requests, refused = (int(value) for value in (rows["requests"][1], rows["refused"][1]))
    assert refused == requests // 4
    assert rows["refused"][0] == "0"
    found = json.loads((tmp_path / "compare-stub.json").read_text())
    assert found["totals"]["online"]["refused"] == refused
    assert found["totals"]["online"]["tokens_per_s"] > 0


@pytest.mark.slow
def test_two_workers_and_a_master(server: Endpoints, tmp_path: Path) -> None:
    port = Endpoints.free("127.0.0.1").http_port
    base = [sys.executable, "-m", "locust", "-f", str(_LOADTESTS / "locustfile.py"), "OnlineGrpc", "BulkGrpc"]
    base += ["--headless", "--host", server.grpc, "--plan", "3x20,2x20+bulk", "--stop-timeout", "30"]
    samples = tmp_path / "samples.json"
    master = [*base, "--master", "--master-bind-port", str(port), "--expect-workers", "2", "--samples", str(samples)]
    worker = [*base[:7], "--worker", "--master-host", "127.0.0.1", "--master-port", str(port)]
    with contextlib.ExitStack() as stack, (tmp_path / "log").open("wb") as log:
        started = [
            stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            for command in (master, worker, worker)
        ]
        try:
            codes = [process.wait(60) for process in started]
        except subprocess.TimeoutExpired:
            pytest.fail((tmp_path / "log").read_text())
        finally:
            for process in started:
                process.kill()
    text = (tmp_path / "log").read_text()
    assert codes == [0, 0, 0], text
    found = read_samples(samples)
    assert {sample.outcome for sample in found} == {OK}
    assert {sample.traffic for sample in found} == {ONLINE, BULK}
    queries = sum(sample.traffic == ONLINE for sample in found)
    assert queries == pytest.approx(100, abs=50)  # five standard deviations of a Poisson count
    assert "2 workers connected" in text


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    return make_bert_reranker(tmp_path_factory.mktemp("reranker"), minilm)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_documents_are_scored_by_a_reranker(minilm: Path, reranker: Path, tmp_path: Path, kind: str) -> None:
    served = Served(minilm, reranker, document_words=8, options=("--device=cpu",))
    with (tmp_path / "log").open("wb") as log, own_server(served, kind, log) as target:
        run = run_plan(target, "3x2+score8")
    assert {(sample.traffic, sample.outcome) for sample in run.samples} == {(ONLINE, OK), (SCORE, OK)}
    scored = [sample for sample in run.samples if sample.traffic == SCORE]
    assert {sample.texts for sample in scored} == {5, 25, 50}
    # A pair is at least eight words of a document, a word of the query and three special tokens; the model takes 24.
    assert all(12 * sample.texts <= sample.tokens <= 24 * sample.texts for sample in scored)


@pytest.mark.slow
def test_the_gateway_embeds_and_scores(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, own_server(Served(document_words=8), "openai", log) as target:
        run = run_plan(target, "3x4+score3")
    assert {(sample.traffic, sample.outcome) for sample in run.samples} == {(ONLINE, OK), (SCORE, OK)}
    assert {sample.texts for sample in run.samples if sample.traffic == SCORE} <= {5, 25, 50}


@pytest.mark.slow
def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        with pytest.raises(LoadError, match="before it was ready"), own_server(Served(tmp_path), "grpc", log):
            pass
        with pytest.raises(LoadError, match="goes with a checkpoint"), own_server(Served(None, tmp_path), "grpc", log):
            pass


@pytest.mark.slow
def test_scoring_needs_something_that_scores(server: Endpoints) -> None:
    with pytest.raises(LoadError, match="nothing that scores is named"):
        run_plan(Target("grpc", server.grpc, "embed"), "2x1+score1")
    with pytest.raises(LoadError, match="kind of scoring 'cohere'"):
        ScoreTarget("cohere", "a:1", "m")


@pytest.mark.slow
@pytest.mark.alone
def test_a_short_mix_of_all_traffic_writes_a_report(tmp_path: Path) -> None:
    command = [sys.executable, str(_LOADTESTS / "loadtest.py"), "mix", "--rates=5,5+bulk", "--seconds=24", "--peak=10"]
    command += ["--score-peak=2", "--document-words=8", "--warm-seconds=3", "--lone-seconds=6"]
    command += ["--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=295, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "mix.json").read_text())
    assert {traffic: row["failed"] for traffic, row in found["totals"].items()} == {ONLINE: 0, BULK: 0, SCORE: 0}
    day = found["day"]
    assert day["classes"].keys() == {ONLINE, BULK, SCORE}
    assert day["classes"][ONLINE]["answered"] >= 60  # of 108 on average, a Poisson count
    assert day["bulk_alone_texts_per_s"] > 0
    assert 0 < day["bulk_kept"] < 2
    assert found["metrics"][-1]["tokens"] > 0
    page = (tmp_path / "mix.html").read_text()
    assert page.count("<svg") == 5
    assert "src=" not in page
    assert "<link" not in page
    again = [sys.executable, str(_LOADTESTS / "loadtest.py"), "report", str(tmp_path / "mix.json")]
    subprocess.run(again, check=True, timeout=60)
    assert (tmp_path / "mix.html").read_text().partition("</h1>")[2] == page.partition("</h1>")[2]


@pytest.mark.slow
@pytest.mark.alone
def test_the_capacity_of_a_real_server_is_found(server: Endpoints, tmp_path: Path) -> None:
    command = [sys.executable, str(_LOADTESTS / "loadtest.py"), "capacity", "--host", server.grpc, "--p99-ms=2000"]
    command += ["--start=4", "--highest=8", "--trial-seconds=3", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "capacity.json").read_text())
    assert found["queries_per_s"] == 8  # a rate that any machine carries, at which it was told to stop
    assert [trial["rate"] for trial in found["trials"]] == [4, 8]
    assert all(trial["held"] and trial["summary"]["answered"] > 0 for trial in found["trials"])
