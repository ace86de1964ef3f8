"""What the way through the server adds to the engine's own step on the CPU, one request at a time.

Texts of 24 words, one a request, all-MiniLM-L6-v2's geometry. Without `--checkpoint` its real weights are served.

    python loadtests/cpu_path.py [--checkpoint FOLDER] [--requests 300] [--output loadtests/results/NAME.json]
"""

from __future__ import annotations

import argparse
import tempfile
import time
import urllib.request
from pathlib import Path

from closed_loop import Load, Target, measure
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
            time.sleep(_FLUSHED_SECONDS)
            before = sums(server.endpoints.metrics)
            row = measure(target, Load(24, 1, 1, args.requests))
            time.sleep(_FLUSHED_SECONDS)
            after = sums(server.endpoints.metrics)
    mean_ms = {}
    for stage in _STAGES:
        seconds, count = (
            after[f"rose_{stage}_seconds_{part}"] - before.get(f"rose_{stage}_seconds_{part}", 0.0)
            for part in ("sum", "count")
        )
        mean_ms[stage] = round(seconds / count * 1e3, 3)
    result = {
        "benchmark": "cpu_path",
        **row,
        "mean_ms": mean_ms,
        "path_adds_ms": round(row["p50_ms"] - mean_ms["step"], 2),
        "machine": describe_machine(),
    }
    print({key: value for key, value in result.items() if key != "machine"})
    if args.output is not None:
        write_result(args.output, result)


if __name__ == "__main__":
    main()
