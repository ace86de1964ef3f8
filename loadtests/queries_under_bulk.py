"""Queries on the CPU, alone and while requests of 2,000 texts run one after another: what bulk work costs them.

all-MiniLM-L6-v2 with its real weights; queries of 24 words at random moments, texts of 120 words. `bulk_step_ms` is
the time of a step while both run, less that of the queries, nearly every one of which is a batch of its own.

    python loadtests/queries_under_bulk.py [--rate 5] [--queries 500] [--output loadtests/results/NAME.json]
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from closed_loop import Load, Target, draw_texts, measure
from environment import describe_machine, write_result
from metrics_page import settled_sums

from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server

_WORDS, _BULK_WORDS, _BULK_TEXTS = 24, 120, 2_000
Watched: TypeAlias = tuple[dict[str, Any], dict[str, float]]

_STEPS, _SECONDS = "rose_step_seconds_count", "rose_step_seconds_sum"


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5.0, help="queries a second")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    pipeline = Pipeline()
    load = Load(_WORDS, 1, 1, args.queries, rate=args.rate)
    with tempfile.TemporaryDirectory() as scratch:
        store = Repository(Path(scratch))
        store.add(pipeline)
        with ServerProcess(find_server(), store.folder, [pipeline.name], Endpoints.free("127.0.0.1")) as server:
            server.wait_until_ready()
            row = compared(Target("triton", server.endpoints.grpc, pipeline.name), server.endpoints.metrics, load)
    print(row)
    if args.output is not None:
        write_result(args.output, {"benchmark": "queries_under_bulk", "row": row, "machine": describe_machine()})


def compared(target: Target, metrics: str, load: Load) -> dict[str, Any]:
    """Latencies of the load alone and beside bulk work; a part of it has run just before each."""
    first = Load(load.num_words, 1, 1, 20, rate=load.rate)
    measure(target, first)
    alone = watched(target, metrics, load)
    with bulk_work(target):
        measure(target, first)
        under = watched(target, metrics, load)
    return {"rate": load.rate, "num_queries": load.num_requests, **comparison(alone, under)}


def watched(target: Target, metrics: str, load: Load, during: AbstractContextManager[object] | None = None) -> Watched:
    """What `measure` says of a load, and by how much the server's metrics grew meanwhile."""
    before = settled_sums(metrics)
    with during or nullcontext():
        row = measure(target, load)
    return row, {key: value - before.get(key, 0.0) for key, value in settled_sums(metrics).items()}


def comparison(alone: Watched, under: Watched) -> dict[str, Any]:
    """Of the same queries alone and under bulk work; nearly each is a batch of its own, other steps are bulk work's."""
    count = alone[0]["num_requests"]
    query_step = alone[1][_SECONDS] / alone[1][_STEPS]
    bulk_steps = under[1][_STEPS] - count
    return {
        **{f"alone_{key}": alone[0][key] for key in ("p50_ms", "p99_ms")},
        **{f"under_bulk_{key}": under[0][key] for key in ("p50_ms", "p99_ms")},
        "query_step_ms": round(query_step * 1e3, 2),
        "bulk_step_ms": round((under[1][_SECONDS] - count * query_step) / bulk_steps * 1e3, 2),
        "bulk_texts": round(under[1]["rose_sequences_total"] - count),
    }


@contextmanager
def bulk_work(target: Target) -> Iterator[None]:
    """A process that sends the next request as soon as it has the answer to the last."""
    process = multiprocessing.get_context("fork").Process(target=_send, args=(target,))
    process.start()
    try:
        yield
        if not process.is_alive():
            raise RuntimeError("the bulk requests broke off")
    finally:
        process.terminate()
        process.join()


def _send(target: Target) -> None:
    import tritonclient.grpc as grpcclient

    texts = draw_texts(random.Random(1), _BULK_TEXTS, _BULK_WORDS)
    tensor = grpcclient.InferInput("TEXT", [1, len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode() for text in texts]], dtype=object))
    with grpcclient.InferenceServerClient(target.address) as client:
        while True:
            client.infer(target.model, [tensor])


if __name__ == "__main__":
    main()
