"""The whole way on a GPU, text in and vectors out over gRPC, beside vLLM's server, in one run.

Needs the server's packages; vLLM may live in another Python. Numerics are checked in the same run.

    python loadtests/server_bench.py --tokenizer tokenizer.json --output loadtests/results/server-h200.json \\
        [--vllm-python PATH]

`tokenizer.json` is made by `qwen_vocabulary.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from closed_loop import Load, Target, draw_texts, measure
from environment import describe_machine, write_result
from queries_under_bulk import comparison, watched
from random_checkpoint import write_qwen3_embedding

_HTTP, _GRPC, _METRICS, _VLLM = 8700, 8701, 8702, 8710
_METRICS_PAGE = f"127.0.0.1:{_METRICS}"
_TRITON = Target("triton", f"127.0.0.1:{_GRPC}", "embed-0.6b")
_START_SECONDS = 240

LOADS: dict[str, Load] = {
    "24 words, c=1": Load(24, 1, 1, 400),
    "24 words, c=16": Load(24, 1, 16, 8_000),
    "24 words, c=64": Load(24, 1, 64, 24_000),
    "120 words, c=1": Load(120, 1, 1, 300),
    "120 words, c=64": Load(120, 1, 64, 12_000),
    "480 words, c=1": Load(480, 1, 1, 200),
    "480 words, c=64": Load(480, 1, 64, 5_000),
    "480 words, 4 x 100 texts": Load(480, 100, 4, 48),
    "120 words, 4 x 100 texts": Load(120, 100, 4, 120),
}
_STAGES = ("tokenize", "queue", "step", "copy", "request")  # tokenize: of a call; queue: from arrival to the batch
_GRAPHS = ("eager", "captures", "replays", "covered")
_ALONE_SECONDS = 10.5  # after which bulk work gets the batches of a night
_SLOW_SHARE = 5  # vLLM is given this many times fewer requests, so that a run ends


@contextmanager
def process(command: list[str], ready: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    """A server in a session of its own, from when `ready` answers 200 until it is stopped."""
    if _answers(ready):
        raise RuntimeError(f"{ready} answers already: another server would be measured")
    with log.open("wb") as file:
        running = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, **(environment or {})}, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(ready):
            if running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[:4]} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.25)
        yield
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
        _kill_group(running.pid)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 (our own server)
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class GpuBusy:
    """Share of the time some kernel ran on the first card, as the driver samples it; a context manager."""

    def __enter__(self) -> GpuBusy:
        query = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        output, _ = self._process.communicate()
        samples = [int(line) for line in output.split() if line.strip().isdigit()]
        middle = samples[len(samples) // 5 : -max(1, len(samples) // 5)]  # without its start and end
        self.percent = statistics.mean(middle) if middle else float("nan")


def rose_rows(quick: bool) -> list[dict[str, Any]]:
    """Every load against the running ROSE server."""
    rows = []
    bulk = False
    for name, load in LOADS.items():
        if load.num_texts > 1 and not bulk:
            time.sleep(_ALONE_SECONDS)
            bulk = True
        measure(_TRITON, Load(load.num_words, load.num_texts, load.concurrency, max(8, load.num_requests // 5)))
        busy = GpuBusy()
        row, delta = watched(_TRITON, _METRICS_PAGE, load, busy)
        row |= {
            "tokens_per_text": round(delta["rose_tokens_total"] / max(1, delta["rose_sequences_total"]), 1),
            "tokens_per_batch": round(delta["rose_tokens_total"] / max(1, delta["rose_batches_total"])),
            "gpu_busy_percent": round(busy.percent, 1),
            **{f"graph_{kind}": round(delta[f"rose_graph_{kind}_total"]) for kind in _GRAPHS},
            **{f"mean_{stage}_ms": _mean_ms(delta, f"rose_{stage}_seconds") for stage in _STAGES},
        }
        rows.append({"server": "rose", "load": name, **row})
        print(rows[-1], flush=True)
    if not quick:
        rows += [*half_rate_rows(rows), queries_under_bulk()]
    return rows


def _mean_ms(delta: dict[str, float], name: str) -> float:
    return round(delta[f"{name}_sum"] / max(1, delta[f"{name}_count"]) * 1e3, 3)


def half_rate_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An open loop at half of each text length's best rate."""
    found = []
    for words in (24, 120, 480):
        peak = max(r["requests_per_s"] for r in rows if r["num_words"] == words and r["num_texts"] == 1)
        measure(_TRITON, Load(words, 1, 64, int(peak / 2), rate=peak / 2))
        row, delta = watched(_TRITON, _METRICS_PAGE, Load(words, 1, 64, int(peak / 2 * 4), rate=peak / 2))
        row["graph_captures"] = round(delta["rose_graph_captures_total"])
        found.append({"server": "rose", "load": f"{words} words, open loop at half the peak", **row})
        print(found[-1], flush=True)
    return found


def queries_under_bulk() -> dict[str, Any]:
    """One-line queries, alone and while 2,000-text requests run one after another.

    Both have run beside each other once before: what is asked is what bulk work costs, not what its first graphs do.
    """
    load = Load(24, 1, 8, 1600, rate=100.0)
    alone = watched(_TRITON, _METRICS_PAGE, load)
    stop = threading.Event()

    def bulk() -> None:
        while not stop.is_set():
            measure(_TRITON, Load(120, 2000, 1, 1))

    thread = threading.Thread(target=bulk)
    thread.start()
    try:
        measure(_TRITON, load)
        under = watched(_TRITON, _METRICS_PAGE, load)
    finally:
        stop.set()
        thread.join()
    row = {
        "server": "rose",
        "load": "24 words at 100/s, alone and under 2,000-text requests",
        **comparison(alone, under),
        **{f"graph_{kind}": round(under[1][f"rose_graph_{kind}_total"]) for kind in _GRAPHS},
    }
    print(row, flush=True)
    return row


def numerics(folder: Path) -> dict[str, float]:
    """Cosines of served vectors with transformers in float32."""
    import torch
    import tritonclient.grpc as grpcclient
    from tokenizers import Tokenizer
    from transformers import Qwen3Model

    rng = random.Random(5)
    texts = [text for words in (1, 24, 120, 480, 1500) for text in draw_texts(rng, 4, words)]
    tensor = grpcclient.InferInput("TEXT", [1, len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode() for text in texts]], dtype=object))
    with grpcclient.InferenceServerClient(_TRITON.address) as client:
        served = client.infer(_TRITON.model, [tensor]).as_numpy("EMBEDDING")[0]
    model = Qwen3Model.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cosines = []
    with torch.inference_mode():
        for text, vector in zip(texts, served, strict=True):
            ids = torch.tensor([tokenizer.encode(text).ids], device="cuda")
            last = model(ids, use_cache=False).last_hidden_state[0, -1]
            cosines.append(float(torch.nn.functional.normalize(last, dim=0).cpu() @ torch.from_numpy(vector.copy())))
    return {"lowest_cosine": min(cosines), "median_cosine": statistics.median(cosines)}


def vllm_rows(python: str, folder: Path, log: Path, api_servers: int) -> list[dict[str, Any]]:
    """The same loads against vLLM's OpenAI server."""
    command = [
        *python.split(), "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--runner", "pooling",
        "--dtype", "bfloat16", "--max-model-len", "8192", "--gpu-memory-utilization", "0.4", "--port", str(_VLLM),
        "--host", "127.0.0.1", "--api-server-count", str(api_servers), "--served-model-name", "m",
    ]  # fmt: skip
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    target = Target("openai", f"http://127.0.0.1:{_VLLM}/v1/embeddings", "m")
    rows = []
    with process(command, f"http://127.0.0.1:{_VLLM}/health", log, environment):
        for name, load in LOADS.items():
            fewer = max(load.num_requests // _SLOW_SHARE, 2 * load.concurrency)
            row = measure(target, Load(load.num_words, load.num_texts, load.concurrency, fewer))
            rows.append({"server": f"vllm, {api_servers} API processes", "load": name, **row})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run what the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--vllm-python", help="command of a Python that has vLLM")
    parser.add_argument("--api-servers", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--quick", action="store_true", help="leave out the open loop and the queries under bulk")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rose-server-bench-"))
    folder = write_qwen3_embedding(work / _TRITON.model, args.tokenizer)
    result: dict[str, Any] = {
        "benchmark": "server",
        "model": "Qwen3-Embedding-0.6B geometry, random weights, bfloat16, last token; the real vocabulary",
        "machine": describe_machine(),
        "rows": [],
    }
    command = [sys.executable, "-m", "rose_client.cli", "serve", "--checkpoint", str(folder)]
    command += ["--repository", str(work / "repository"), "--http-port", str(_HTTP), "--grpc-port", str(_GRPC)]
    command += ["--metrics-port", str(_METRICS)]
    began = time.perf_counter()
    with process(command, f"http://127.0.0.1:{_HTTP}/v2/models/{_TRITON.model}/ready", work / "rose.log"):
        result["start_seconds"] = round(time.perf_counter() - began, 1)
        print("ready after", result["start_seconds"], "s", flush=True)
        result["rows"] += rose_rows(args.quick)
        result["numerics"] = numerics(folder)
        print(result["numerics"], flush=True)
    if args.output is not None:
        write_result(args.output, result)
    if args.vllm_python:
        for api_servers in args.api_servers:
            result["rows"] += vllm_rows(args.vllm_python, folder, work / "vllm.log", api_servers)
            if args.output is not None:
                write_result(args.output, result)


if __name__ == "__main__":
    main()
