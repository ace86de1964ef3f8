"""`rose serve`: what it prints can be pasted, and SIGTERM at any time leaves nothing behind."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.support.oracle import Oracle
from tests.support.processes import processes_mentioning, rose_command, running
from tests.support.serving import serving
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.support.wire import RawGrpc, text_input, text_tensor

_FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--gateway-port=0")


@pytest.fixture(scope="module")
def logs() -> list[str]:
    """What it had logged by then; filled by `printed`."""
    return []


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, logs: list[str]) -> Iterator[list[str]]:
    """The lines a running `rose serve` has printed."""
    folder = tmp_path_factory.mktemp("serve")
    command = rose_command(
        "serve", f"--repository={folder / 'repository'}", "--log-level=info", "--gateway", *_FREE_PORTS
    )
    with running(command, folder / "log") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("  python -c"):
                break
        else:
            pytest.fail((folder / "log").read_text(errors="replace"))
        logs[:] = (folder / "log").read_text().splitlines()
        yield lines
        gateway = int(_address(lines, "gateway").rpartition(":")[2])
    assert processes_mentioning(folder) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", gateway)) != 0


def test_ready_line(printed: list[str]) -> None:
    assert printed[0] == "ready: embed"


@pytest.mark.usefixtures("printed")
def test_what_was_measured_at_start_is_logged(logs: list[str]) -> None:
    lines = [json.loads(line) for line in logs if line.startswith('{"time"')]
    [measured] = [line for line in lines if line["event"] == "token budget measured"]
    assert measured["model"] == "rose"
    assert str(measured["token_budget"]) in measured["milliseconds"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_printed_curl_works(printed: list[str], oracle: Oracle) -> None:
    command = next(line for line in printed if line.startswith("  curl"))
    assert "Content-Type: application/json" in command  # as a form, a large body would end the server
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60, check=True)
    outputs = {output["name"]: output for output in json.loads(done.stdout)["outputs"]}
    assert_close(np.array(outputs["EMBEDDING"]["data"], np.float32), oracle.vector("hello"))


def test_printed_python_works(printed: list[str], oracle: Oracle) -> None:
    command = next(line for line in printed if line.startswith("  python"))
    arguments = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert_close(np.array(done.stdout.strip(" []\n").split(), np.float32), oracle.vector("hello")[:4])


def test_printed_gateway_answers(printed: list[str], oracle: Oracle) -> None:
    url = _address(printed, "gateway")
    assert httpx.get(f"{url}/health", timeout=60).json() == {"embed": "ready"}
    answer = httpx.post(f"{url}/v1/embeddings", json={"model": "embed", "input": "hello"}, timeout=60)
    assert_close(answer.json()["data"][0]["embedding"], oracle.vector("hello"))


def test_embed_reads_standard_input(printed: list[str], oracle: Oracle) -> None:
    command = rose_command("embed", f"--url={_address(printed, 'gRPC')}")
    done = subprocess.run(command, input="tea\n\ncaf\u00e9\n", capture_output=True, text=True, timeout=60, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["text"] for record in records] == ["tea", "", "caf\u00e9"]
    assert [record["tokens"] for record in records] == [3, 2, 3]
    assert_close([record["embedding"] for record in records], oracle.vectors(["tea", "", "caf\u00e9"]))


def test_embed_shows_a_refusal(printed: list[str]) -> None:
    command = rose_command("embed", f"--url={_address(printed, 'gRPC')}", "--model=nothing", "tea")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "nothing" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_sigterm_while_starting_leaves_nothing_behind(tmp_path: Path, command: str) -> None:
    options = (f"--repository={tmp_path / 'repository'}", *_FREE_PORTS) if command == "serve" else ()
    try:
        with running(rose_command(command, *options), tmp_path / "log", {"TMPDIR": str(tmp_path)}) as process:
            wait_until(lambda: any(pid != process.pid for pid in processes_mentioning(tmp_path)), "a server is there")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        wait_until(lambda: processes_mentioning(tmp_path) == [], "every process is gone")
    finally:
        for left in processes_mentioning(tmp_path):
            os.kill(left, signal.SIGKILL)


def test_sigterm_lets_what_was_begun_be_finished(tmp_path: Path, oracle: Oracle) -> None:
    """Also what is being tokenized, and while others cancel what they sent, which ends Triton on its own.

    A connection of HTTP that somebody keeps for later would keep Triton until its exit timeout.
    """
    slow = text_tensor([" " * 200_000] * 20, [1, 20])  # for its tokenizer: the engine has two tokens a text
    with (
        serving(tmp_path, "--device=cpu") as served,
        RawGrpc(served.grpc) as raw,
        ThreadPoolExecutor(3) as pool,
        grpcclient.InferenceServerClient(served.grpc) as client,
        httpx.Client() as kept,
    ):
        assert kept.get(f"http://{served.http}/v2/health/ready").status_code == 200
        before = _busy_seconds(served.stub("tokenize"))
        begun = pool.submit(raw.infer, [slow])
        wait_until(lambda: _busy_seconds(served.stub("tokenize")) > before + 0.1, "it is being tokenized")
        cancelling = [pool.submit(_cancel_until, served.process, client) for _ in range(2)]
        served.process.send_signal(signal.SIGTERM)
        vectors = begun.result()["EMBEDDING"][0]
        assert served.process.wait(100) == 0
        assert sum(future.result() for future in cancelling) > 0
    for vector in vectors:
        assert_close(vector, oracle.vector(""))


def test_sigterm_lets_the_gateway_finish(tmp_path: Path, oracle: Oracle) -> None:
    """A request of many texts is sent on in parts, the last of them after the signal."""
    texts = [f"tea {index}" for index in range(2_000)]
    with serving(tmp_path, "--device=cpu", "--gateway") as served, ThreadPoolExecutor(1) as pool:
        before = _busy_seconds(served.stub("rose"))
        url, body = f"http://{served.gateway}/v1/embeddings", {"model": "embed", "input": texts}
        begun = pool.submit(httpx.post, url, json=body, timeout=100)
        wait_until(lambda: _busy_seconds(served.stub("rose")) > before + 0.1, "the first part is being run")
        served.process.send_signal(signal.SIGTERM)
        assert not begun.done()
        answer = begun.result()
        assert answer.status_code == 200, answer.text
        assert served.process.wait(100) == 0
    vectors = [np.array(entry["embedding"], np.float32) for entry in answer.json()["data"]]
    assert len(vectors) == len(texts)
    for index in (0, len(texts) - 1):
        assert_close(vectors[index], oracle.vector(texts[index]))


def _cancel_until(ended: subprocess.Popen[str], client: grpcclient.InferenceServerClient) -> int:
    """Cancel one small request after another until a process has ended; how many."""
    count = 0
    while ended.poll() is None:
        over = threading.Event()
        sent = client.async_infer("embed", [text_input(grpcclient, ["tea"])], lambda over=over, **_: over.set())
        over.wait(0.003)
        sent.cancel()
        assert over.wait(60)
        count += 1
    return count


def _busy_seconds(pid: int) -> float:
    """Time of a core that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _address(printed: list[str], label: str) -> str:
    return next(line.split()[1] for line in printed if line.startswith(f"  {label}"))
