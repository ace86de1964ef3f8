"""The engine alone on a GPU: latency, scoring and throughput shapes, eager and recorded, each attention backend, vLLM.

Every row is the p50 and p99 of handing all requests to the engine and holding all vectors on the host. Inputs are
random token ids; the vectors of a spread of lengths are compared with transformers in float32 in the same run.

    python loadtests/engine_bench.py --output loadtests/results/engine-h200.json [--vllm-python PATH] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import describe_machine, write_result
from random_checkpoint import write_qwen3

from rose_backend.buckets import Bucket
from rose_backend.config import EngineConfig, GraphConfig, HeadConfig, PoolingMode
from rose_backend.core import Batch, Float32Array, Request
from rose_backend.cuda_runner import CudaRunner
from rose_backend.engine import RoseEngine
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.packer import TokenPacker

Lengths = list[int]

SUITES: dict[str, Lengths] = {
    "1 x 16": [16],
    "1 x 128": [128],
    "1 x 512": [512],
    "1 x 4096": [4096],
    "5 x 512": [512] * 5,
    "25 x 512": [512] * 25,
    "50 x 512": [512] * 50,
    "100 x 512": [512] * 100,
    "100 x 128": [128] * 100,
    "64 mixed 8 to 2048": random.Random(0).choices(range(8, 2049), k=64),
}
_VARIANT_SUITES = ("1 x 16", "1 x 512", "1 x 4096", "5 x 512", "25 x 512")  # for all but `auto`
_ORACLE_LENGTHS = [
    1,
    2,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    512,
    513,
    1023,
    1024,
    1025,
    2048,
    4096,
]
_SWEPT_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
_SWEPT_SEQUENCES = 128  # of 512 tokens
_LOWEST_TOKEN, _HIGHEST_TOKEN = 1000, 150_000


def requests(rng: np.random.Generator, lengths: Sequence[int]) -> deque[Request]:
    """One request of one random sequence for each length."""
    queue: deque[Request] = deque()
    for length in lengths:
        ids = rng.integers(_LOWEST_TOKEN, _HIGHEST_TOKEN, length, dtype=np.int32)
        queue.append(Request(ids, np.array([length], np.int32), lambda _: None))
    return queue


def embed(engine: RoseEngine, queue: deque[Request], budget: int | None = None) -> list[tuple[Batch, LazyTensor]]:
    """Pack and launch everything, as the engine thread does."""
    packer = TokenPacker(budget or engine.budgets.tokens, engine.config.max_sequences)
    launched = []
    while (batch := packer.take(queue)) is not None:
        launched.append((batch, engine.step(batch)))
    return launched


def record(engine: RoseEngine, lengths: Sequence[int]) -> None:
    """Have the exact buckets of these sequences recorded, as they are once a server has been idle."""
    runner, packer = engine.runner, TokenPacker(engine.budgets.tokens, engine.config.max_sequences)
    assert isinstance(runner, CudaRunner)
    queue = requests(np.random.default_rng(0), lengths)
    while (batch := packer.take(queue)) is not None:
        runner.warm([Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen)])


def time_suite(engine: RoseEngine, lengths: Lengths, repeats: int) -> dict[str, float]:
    """Milliseconds from requests to vectors on the host, and tokens a second."""
    rng = np.random.default_rng(1)
    record(engine, lengths)
    taken = []
    for round_ in range(repeats + 4):
        queue = requests(rng, lengths)
        began = time.perf_counter()
        for _, rows in embed(engine, queue):
            rows.wait()
        if round_ >= 4:  # eager where nothing is recorded, first replays
            taken.append((time.perf_counter() - began) * 1e3)
    taken.sort()
    p50 = taken[len(taken) // 2]
    return {"p50_ms": round(p50, 3), "p99_ms": round(taken[-1], 3), "tokens_per_s": round(sum(lengths) / p50 * 1e3)}


def sweep_budgets(engine: RoseEngine, repeats: int) -> list[dict[str, float]]:
    """Throughput of a deep queue, and how long one batch takes, by token budget; the budgets take turns."""
    lengths = [512] * _SWEPT_SEQUENCES
    rng = np.random.default_rng(4)
    taken: dict[int, list[float]] = {budget: [] for budget in _SWEPT_BUDGETS}
    for round_ in range(repeats + 2):
        for budget in _SWEPT_BUDGETS:
            queue = requests(rng, lengths)
            began = time.perf_counter()
            launched = embed(engine, queue, budget)
            for _, rows in launched:
                rows.wait()
            if round_ >= 2:
                taken[budget].append((time.perf_counter() - began) * 1e3)
    found = []
    for budget, times in taken.items():
        p50 = sorted(times)[len(times) // 2]
        found.append(
            {
                "token_budget": budget,
                "tokens_per_s": round(sum(lengths) / p50 * 1e3),
                "batch_ms": round(p50 * budget / sum(lengths), 2),
            }
        )
    return found


def host_microseconds(engine: RoseEngine, lengths: Lengths) -> dict[str, float]:
    """Host time of one replayed step without waiting, and how far back-to-back steps overlap."""
    rng = np.random.default_rng(2)
    record(engine, lengths)
    for _ in range(4):
        for _, rows in embed(engine, requests(rng, lengths)):
            rows.wait()
    hosts = []
    for _ in range(50):
        queue = requests(rng, lengths)
        torch.cuda.synchronize()
        began = time.perf_counter()
        launched = embed(engine, queue)
        hosts.append((time.perf_counter() - began) * 1e6)
        launched[-1][1].wait()
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    batch = Batch.of(tuple(segment for segment in launched[-1][0].segments))
    bucket = Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen)
    recording = runner.graphs.recorded(bucket)
    assert recording is not None
    began_event, ended_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    began_event.record()
    for _ in range(100):
        recording.graph.replay()
    ended_event.record()
    torch.cuda.synchronize()
    device_ms = began_event.elapsed_time(ended_event)
    queues = [requests(rng, lengths) for _ in range(100)]
    began = time.perf_counter()
    pending: deque[LazyTensor] = deque()
    for queue in queues:
        pending.extend(rows for _, rows in embed(engine, queue))
        if len(pending) > 2:
            pending.popleft().wait()
    while pending:
        pending.popleft().wait()
    wall_ms = (time.perf_counter() - began) * 1e3
    return {
        "host_us": round(sorted(hosts)[len(hosts) // 2], 1),
        "device_ms_of_100": round(device_ms, 2),
        "wall_ms_of_100": round(wall_ms, 2),
        "overlap_ratio": round(wall_ms / device_ms, 3),
    }


def vectors_of(engine: RoseEngine, sequences: Sequence[np.ndarray]) -> Float32Array:
    """Vectors of given sequences, in order, all offered at once."""
    queue = deque(Request(ids, np.array([len(ids)], np.int32), lambda _: None) for ids in sequences)
    parts = []
    for batch, rows in embed(engine, queue):
        unsorted = np.empty((batch.num_sequences, engine.dim), np.float32)
        unsorted[batch.order] = rows.numpy()
        parts.append(unsorted)
    return np.concatenate(parts)


def check_numerics(engine: RoseEngine, folder: Path, *, causal: bool) -> dict[str, float]:
    """Cosines with transformers in float32: together in one offer, alone, and graph against eager."""
    from transformers import Qwen3Model

    rng = np.random.default_rng(3)
    sequences = [rng.integers(_LOWEST_TOKEN, _HIGHEST_TOKEN, length, dtype=np.int32) for length in _ORACLE_LENGTHS]
    model = Qwen3Model.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    oracle = []
    with torch.inference_mode():
        for ids in sequences:
            hidden = model(torch.from_numpy(ids).long()[None].cuda(), use_cache=False).last_hidden_state[0]
            pooled = hidden[-1] if causal else hidden.mean(0)
            oracle.append(torch.nn.functional.normalize(pooled, dim=0).cpu().numpy())
    del model
    torch.cuda.empty_cache()
    assert isinstance(engine.runner, CudaRunner)
    engine.runner.forget()
    first = vectors_of(engine, sequences)
    record(engine, _ORACLE_LENGTHS)
    replayed = vectors_of(engine, sequences)
    alone = np.concatenate([vectors_of(engine, [ids]) for ids in sequences])
    cosines = (replayed * np.stack(oracle)).sum(1)
    return {
        "lowest_cosine": float(cosines.min()),
        "median_cosine": float(np.median(cosines)),
        "graph_equals_eager": bool((first == replayed).all()),
        "lowest_cosine_alone_and_together": float((alone * replayed).sum(1).min()),
    }


def run_vllm(python: str, folder: Path, shapes: Mapping[str, Lengths], **options: Any) -> dict[str, Any]:
    """vLLM's rows, in a process of its own so that each has the card to itself.

    Raises:
        RuntimeError: it gave none; what it said is on the standard error.
    """
    script = Path(__file__).with_name("vllm_bench.py")
    told = [str(folder), json.dumps(shapes)]
    with tempfile.NamedTemporaryFile(suffix=".json") as answer:
        # Its engine process may abort while shutting down; what counts is whether the answer is there.
        command = [*python.split(), str(script), *told, answer.name, json.dumps(options)]
        done = subprocess.run(command, check=False, timeout=420)
        written = Path(answer.name).read_text()
    if not written:
        raise RuntimeError(f"vLLM ended with status {done.returncode} and no answer")
    return dict(json.loads(written))


def config_for(folder: Path, *, causal: bool, budget: int) -> EngineConfig:
    """The serving configuration of the measured model."""
    pooling = PoolingMode.LAST if causal else PoolingMode.MEAN
    return EngineConfig(
        checkpoint=folder,
        max_length=8192,
        head=HeadConfig(pooling, normalize=True),
        device="cuda:0",
        token_budget=budget or None,
        max_sequences=512,
    )


def main() -> None:
    """Run what the flags ask for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--checkpoints", type=Path, default=Path(tempfile.gettempdir()) / "rose-checkpoints")
    parser.add_argument("--budgets", type=int, nargs="*", default=[0], help="token budgets; 0: as measured at start")
    parser.add_argument("--suites", nargs="*", default=list(SUITES))
    parser.add_argument("--variants", nargs="*", default=["auto"], help="auto, eager, or an attention backend's name")
    parser.add_argument("--masks", nargs="*", default=["causal", "bidirectional"])
    parser.add_argument("--vllm-python", help="command of a Python that has vLLM")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "engine",
        "model": "Qwen3-0.6B geometry, random weights, bfloat16",
        "rows": [],
    }
    for mask in args.masks:
        causal = mask == "causal"
        folder = write_qwen3(args.checkpoints / mask, causal=causal)
        for budget in args.budgets:
            for variant in args.variants:
                suites = [s for s in args.suites if variant == "auto" or s in _VARIANT_SUITES]
                if variant == "auto" or mask == args.masks[0]:
                    result["rows"] += _run_variant(folder, mask, variant, budget, suites, args.repeats)
    result["machine"] = describe_machine()
    if args.output is not None:
        write_result(args.output, result)
    if args.vllm_python:
        torch.cuda.empty_cache()
        causal_folder = args.checkpoints / "causal"
        for suite, row in run_vllm(args.vllm_python, causal_folder, {s: SUITES[s] for s in args.suites}).items():
            result["rows"].append({"variant": "vllm", "mask": "causal", "suite": suite, **row})
            print(f"{'vllm':20s} causal        {suite:22s} {row}", flush=True)
    if args.output is not None:
        write_result(args.output, result)


def _run_variant(
    folder: Path, mask: str, variant: str, budget: int, suites: Sequence[str], repeats: int
) -> list[dict[str, Any]]:
    config = config_for(folder, causal=mask == "causal", budget=budget)
    if variant == "eager":
        config = replace(config, graphs=GraphConfig(largest_bucket=0))
    elif variant != "auto":
        config = replace(config, attention=variant)
    began = time.perf_counter()
    engine = RoseEngine(config)
    common = {"variant": variant, "mask": mask, "budget": engine.budgets.tokens}
    start = {**common, "suite": "start-up", "seconds": round(time.perf_counter() - began, 2)}
    print(start, flush=True)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    rows: list[dict[str, Any]] = [start]
    if variant == "auto":
        table = {f"{s.length} x {s.num_tokens // s.length}": name for s, name in runner.selectors[0].table.items()}
        rows.append({**common, "suite": "attention table", "table": table})
        print("attention table", table, flush=True)
    for suite in suites:
        row = time_suite(engine, SUITES[suite], repeats)
        rows.append({**common, "suite": suite, **row})
        print(f"{variant:20s} {mask:13s} {suite:22s} {row}", flush=True)
    if variant == "auto":
        for suite in ("1 x 16", "1 x 512", "16 x 128"):
            host = host_microseconds(engine, SUITES.get(suite) or [128] * 16)
            rows.append({**common, "suite": f"host time {suite}", **host})
            print(f"host {suite}", host, flush=True)
        for row in sweep_budgets(engine, repeats // 3):
            rows.append({**common, "suite": f"budget {row['token_budget']}", **row})
            print("budget", row, flush=True)
        numerics = check_numerics(engine, folder, causal=mask == "causal")
        rows.append({**common, "suite": "numerics", **numerics})
        print(f"{variant:20s} {mask:13s} numerics {numerics}", flush=True)
    counters = vars(runner.graphs.counters)
    rows.append({**common, "suite": "graphs", **counters})
    print(f"graphs {counters}", flush=True)
    engine.close()
    del engine, runner
    torch.cuda.empty_cache()
    return rows


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    main()
