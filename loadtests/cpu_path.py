"""What the way through the server adds to the engine's own step on the CPU, one request at a time.

Texts of 24 words, one a request, all-MiniLM-L6-v2's geometry. Without `--checkpoint` its real weights are served.
Asked in blocks: of each, the mean time that the client saw less the mean of its steps. The median of the blocks says
what the way adds, however much the steps vary. Beside it, in the same way: an ensemble of two Python models with
nothing in them but products of the same matrices (`bare_ensemble/`), which is Triton's own part and the client's; and
both with every core kept from going to sleep (`kept_awake.py`), which is how much of it is waking.

    python loadtests/cpu_path.py [--checkpoint FOLDER] [--blocks 12] [--output loadtests/results/NAME.json]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient
from closed_loop import draw_texts
from environment import describe_machine, write_result
from kept_awake import kept_awake
from metrics_page import settled_sums

from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server

_STAGES = ("tokenize", "queue", "step", "request")
_BLOCK = 40
_BARE = Path(__file__).parent / "bare_ensemble"
_BARE_MODEL = "bare"

Ask = Callable[[grpcclient.InferInput], float]
"""Sends one request; the seconds until its vector was there."""


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    pipeline = Pipeline("path", str(args.checkpoint), devices=("cpu",)) if args.checkpoint else Pipeline()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        store = Repository(Path(scratch))
        store.add(pipeline)
        for folder, model in ((store.folder, pipeline.name), (_BARE, _BARE_MODEL)):
            rows += measured(folder, model, args.blocks)
    result = {"benchmark": "cpu_path", "num_words": 24, "blocks": args.blocks, "requests_per_block": _BLOCK}
    if args.output is not None:
        write_result(args.output, {**result, "rows": rows, "machine": describe_machine()})


def measured(folder: Path, model: str, num_blocks: int) -> list[dict[str, Any]]:
    """A row for each client, with cores as they are and kept awake."""
    rows = []
    with ServerProcess(find_server(), folder, [model], Endpoints.free("127.0.0.1")) as server:
        server.wait_until_ready()
        for awake in (False, True):
            for name, client in (("asyncio", asyncio_client), ("blocking", blocking_client)):
                with kept_awake() if awake else nullcontext(), client(server.endpoints.grpc, model) as ask:
                    row = timed(ask, server.endpoints.metrics, num_blocks)
                rows.append({"model": model, "client": name, "cores_kept_awake": awake, **row})
                print(rows[-1], flush=True)
    return rows


def timed(ask: Ask, metrics: str, num_blocks: int) -> dict[str, Any]:
    """Latencies that a client saw, the server's own times of the same requests, and the difference."""
    rng = random.Random(24)
    pool = [tensor_of(draw_texts(rng, 1, 24)[0]) for _ in range(32)]
    for tensor in pool:
        ask(tensor)
    latencies: list[float] = []
    adds: list[float] = []
    first = before = settled_sums(metrics)
    for _ in range(num_blocks):
        block = [ask(tensor) for tensor in rng.choices(pool, k=_BLOCK)]
        after = settled_sums(metrics)
        adds.append(statistics.fmean(block) - mean_seconds("step", before, after))
        latencies += block
        before = after
    latencies.sort()
    return {
        "p50_ms": round(statistics.median(latencies) * 1e3, 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 2),
        "mean_ms": {
            stage: round(mean_seconds(stage, first, before) * 1e3, 3)
            for stage in _STAGES
            if f"rose_{stage}_seconds_sum" in before  # the bare engine has no more than steps
        },
        "path_adds_ms": round(statistics.median(adds) * 1e3, 2),
    }


def mean_seconds(stage: str, before: dict[str, float], after: dict[str, float]) -> float:
    """Of one stage, between two looks at the metrics."""
    seconds, count = (
        after[f"rose_{stage}_seconds_{part}"] - before.get(f"rose_{stage}_seconds_{part}", 0.0)
        for part in ("sum", "count")
    )
    return seconds / count


def tensor_of(text: str) -> grpcclient.InferInput:
    """TEXT of one element."""
    tensor = grpcclient.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
    return tensor


@contextmanager
def blocking_client(address: str, model: str) -> Iterator[Ask]:
    """The client for whoever asks one thing at a time."""
    wanted = [grpcclient.InferRequestedOutput("EMBEDDING")]
    with grpcclient.InferenceServerClient(address) as client:

        def ask(tensor: grpcclient.InferInput) -> float:
            began = time.perf_counter()
            client.infer(model, [tensor], outputs=wanted).as_numpy("EMBEDDING")
            return time.perf_counter() - began

        yield ask


@contextmanager
def asyncio_client(address: str, model: str) -> Iterator[Ask]:
    """The client of the other benchmarks."""
    wanted = [grpcclient.InferRequestedOutput("EMBEDDING")]
    with closing(asyncio.new_event_loop()) as loop:
        client = loop.run_until_complete(_opened(address))

        async def infer(tensor: grpcclient.InferInput) -> float:
            began = time.perf_counter()
            (await client.infer(model, [tensor], outputs=wanted)).as_numpy("EMBEDDING")
            return time.perf_counter() - began

        try:
            yield lambda tensor: loop.run_until_complete(infer(tensor))
        finally:
            loop.run_until_complete(client.close())


async def _opened(address: str) -> aioclient.InferenceServerClient:
    return aioclient.InferenceServerClient(address)


if __name__ == "__main__":
    main()
