"""What the way through the server adds to the engine's own step on the CPU, one request at a time.

Texts of 24 words, one a request, all-MiniLM-L6-v2's geometry. Without `--checkpoint` its real weights are served.

    python loadtests/cpu_path.py [--checkpoint FOLDER] [--requests 300] [--output loadtests/results/NAME.json]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from closed_loop import Load, Target, draw_texts, measure
from environment import describe_machine, write_result

from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server

_STAGES = ("tokenize", "queue", "step", "request")
_FLUSHED_SECONDS = 1.0


def sums(url: str) -> dict[str, float]:
    """Sums and counts of the server's histograms of times."""
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith("rose_")]
    found: dict[str, float] = {}
    for name, value in lines:
        key = name.split("{")[0]
        found[key] = found.get(key, 0.0) + float(value)
    return found


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    pipeline = Pipeline("path", str(args.checkpoint), devices=("cpu",)) if args.checkpoint else Pipeline()
    with tempfile.TemporaryDirectory() as scratch:
        store = Repository(Path(scratch))
        store.add(pipeline)
        with ServerProcess(find_server(), store.folder, [pipeline.name], Endpoints.free("127.0.0.1")) as server:
            server.wait_until_ready()
            target = Target("triton", server.endpoints.grpc, pipeline.name)
            measure(target, Load(24, 1, 1, 50))
            rows = [
                timed("asyncio client", server.endpoints.metrics, lambda: ask_asyncio(target, args.requests)),
                timed("blocking client", server.endpoints.metrics, lambda: ask_blocking(target, args.requests)),
            ]
    result = {"benchmark": "cpu_path", "num_words": 24, "rows": rows, "machine": describe_machine()}
    for row in rows:
        print(row)
    if args.output is not None:
        write_result(args.output, result)


def timed(name: str, metrics: str, ask: Callable[[], tuple[float, float]]) -> dict[str, Any]:
    """One kind of client, and the server's own times of its requests."""
    time.sleep(_FLUSHED_SECONDS)
    before = sums(metrics)
    p50, p99 = ask()
    time.sleep(_FLUSHED_SECONDS)
    after = sums(metrics)
    mean_ms = {}
    for stage in _STAGES:
        seconds, count = (
            after[f"rose_{stage}_seconds_{part}"] - before.get(f"rose_{stage}_seconds_{part}", 0.0)
            for part in ("sum", "count")
        )
        mean_ms[stage] = round(seconds / count * 1e3, 3)
    adds = round(p50 - mean_ms["step"], 2)
    return {"client": name, "p50_ms": p50, "p99_ms": p99, "mean_ms": mean_ms, "path_adds_ms": adds}


def ask_asyncio(target: Target, num_requests: int) -> tuple[float, float]:
    """p50 and p99 in ms, with the client of the other benchmarks."""
    row = measure(target, Load(24, 1, 1, num_requests))
    return row["p50_ms"], row["p99_ms"]


def ask_blocking(target: Target, num_requests: int) -> tuple[float, float]:
    """p50 and p99 in ms, with the client for whoever asks one thing at a time."""
    rng = random.Random(24)
    pool = [draw_texts(rng, 1, 24) for _ in range(32)]
    latencies = []
    wanted = [grpcclient.InferRequestedOutput("EMBEDDING")]
    with grpcclient.InferenceServerClient(target.address) as client:
        for index in range(20 + num_requests):
            [text] = rng.choice(pool)
            began = time.perf_counter()
            tensor = grpcclient.InferInput("TEXT", [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
            client.infer(target.model, [tensor], outputs=wanted).as_numpy("EMBEDDING")
            if index >= 20:
                latencies.append(time.perf_counter() - began)
    latencies.sort()
    return round(latencies[num_requests // 2] * 1e3, 2), round(latencies[int(num_requests * 0.99)] * 1e3, 2)


if __name__ == "__main__":
    main()
