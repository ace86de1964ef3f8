"""How throughput grows with engines: the same loads at 1, 2, 4, ... GPUs, in one run.

Loads grow with the number of engines, so that each has as much to do. A lone GPU is shared by two engines as well. At
the end one engine's process is killed under load on the largest server: what was answered before, until it was back,
and after.

    python loadtests/replicas_bench.py --tokenizer tokenizer.json --output loadtests/results/replicas-h200.json \\
        [--devices cuda:0,cuda:1]

`tokenizer.json` is made by `qwen_vocabulary.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from closed_loop import Load, Target, draw_texts, measure
from environment import describe_machine, write_result
from metrics_page import sums
from random_checkpoint import write_qwen3_embedding
from server_bench import numerics, process

from rose_client import AsyncRoseClient, RequestError
from rose_ensemble.stubs import live_stubs

_HTTP, _GRPC, _METRICS = 8700, 8701, 8702
_METRICS_PAGE = f"127.0.0.1:{_METRICS}"
_MODEL = "embed-0.6b"
_TARGET = Target("triton", f"127.0.0.1:{_GRPC}", _MODEL)
_PER_ENGINE = {
    "24 words": Load(24, 1, 48, 12_000, processes=16),
    "480 words": Load(480, 1, 48, 3_000, processes=16),
    "120 words, 100 texts a request": Load(120, 100, 4, 120, processes=16),
}
_BULK_TEXTS, _BULK_WORDS, _BULK_ROUNDS = 1000, 480, 11
_KILL_SECONDS = (4.0, 20.0)  # of load before the kill and after it


@contextmanager
def serving(folder: Path, work: Path, devices: list[str]) -> Iterator[None]:
    """`rose serve` on these devices."""
    command = [sys.executable, "-m", "rose_client.cli", "serve", "--checkpoint", str(folder)]
    command += ["--repository", str(work / "repository"), "--device", ",".join(devices)]
    command += ["--http-port", str(_HTTP), "--grpc-port", str(_GRPC), "--metrics-port", str(_METRICS)]
    with process(command, f"http://127.0.0.1:{_HTTP}/v2/models/{_MODEL}/ready", work / "rose.log"):
        yield


def load_rows(label: str, num_engines: int, share: int) -> list[dict[str, Any]]:
    """The loads, `num_engines` times as many requests under way as for one; a `share`-th of the requests."""
    rows = []
    for name, one in _PER_ENGINE.items():
        under_way, requests = one.concurrency * num_engines, one.num_requests * num_engines // share
        load = Load(one.num_words, one.num_texts, under_way, requests, processes=one.processes)
        measure(_TARGET, Load(one.num_words, one.num_texts, under_way, max(under_way, requests // 5), processes=16))
        rows.append({"engines": label, "load": name, **measure(_TARGET, load)})
        print(rows[-1], flush=True)
    return rows


async def bulk_row(label: str) -> dict[str, Any]:
    """One request of 1,000 texts through our client, which splits it; seconds of the quickest and the median."""
    texts = draw_texts(random.Random(7), _BULK_TEXTS, _BULK_WORDS)
    seconds = []
    async with AsyncRoseClient(_TARGET.address, _MODEL, timeout=300, max_in_flight=16) as client:
        await client.embed(texts)
        for _ in range(_BULK_ROUNDS):
            began = time.perf_counter()
            vectors = await client.embed(texts)
            seconds.append(time.perf_counter() - began)
    assert len(vectors) == _BULK_TEXTS
    assert np.isfinite(vectors).all()
    median = statistics.median(seconds)
    row = {
        "engines": label,
        "load": f"one request of {_BULK_TEXTS} texts of {_BULK_WORDS} words",
        "seconds": round(median, 3),
        "quickest": round(min(seconds), 3),
        "texts_per_s": round(_BULK_TEXTS / median, 1),
    }
    print(row, flush=True)
    return row


async def killed_row(label: str, num_engines: int) -> dict[str, Any]:
    """Answers a second while one engine's process is killed under load; our client sends, and retries."""
    answered: list[float] = []
    failed: list[str] = []
    before, after = _KILL_SECONDS
    began = time.perf_counter()
    stop = began + before + after
    killed = threading.Timer(before, _kill_one)
    killed.start()

    async def one(client: AsyncRoseClient, text: str) -> None:
        try:
            await client.embed([text])
        except RequestError as error:
            failed.append(error.message)
        else:
            answered.append(time.perf_counter() - began)

    async def work(seed: int) -> None:
        pool = draw_texts(random.Random(seed), 32, 120)
        async with AsyncRoseClient(_TARGET.address, _MODEL, timeout=20) as client:
            while time.perf_counter() < stop:
                await one(client, pool[len(answered) % len(pool)])

    await asyncio.gather(*(work(seed) for seed in range(16 * num_engines)))
    killed.join()
    per_second = np.bincount(np.array(answered).astype(int))
    row = {
        "engines": label,
        "load": f"120 words; one engine killed after {before:.0f} s",
        "answers_in_each_second": per_second.tolist(),
        "failed": len(failed),
        "first_failure": failed[0] if failed else None,
    }
    print(row, flush=True)
    return row


def _kill_one() -> None:
    servers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stubs = [stub for server in servers for stub in live_stubs(server) if stub.model.endswith("_rose")]
    stubs[0].kill()


def main() -> None:
    """Serve on ever more devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="serve this instead of a Qwen3-0.6B with random weights")
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--share", type=int, default=1, help="send only a so-manieth of the requests")
    parser.add_argument("--no-numerics", action="store_true", help="where there is no GPU for the oracle")
    args = parser.parse_args()
    devices = args.devices.split(",")
    work = Path(tempfile.mkdtemp(prefix="rose-replicas-bench-"))
    folder = args.checkpoint or write_qwen3_embedding(work / _MODEL, args.tokenizer)
    result: dict[str, Any] = {"benchmark": "replicas", "model": folder.name, "rows": []}
    counts = [count for count in (1, 2, 4, 8) if count <= len(devices)]
    plans = {str(count): devices[:count] for count in counts}
    if len(devices) == 1:
        plans["2 on 1"] = devices * 2
    for label, chosen in plans.items():
        with serving(folder, work, chosen):
            busy = sums(_METRICS_PAGE).get("rose_step_seconds_sum", 0.0)
            began = time.perf_counter()
            result["rows"] += load_rows(label, len(chosen), args.share)
            result["rows"].append(asyncio.run(bulk_row(label)))
            time.sleep(1)
            seconds = time.perf_counter() - began
            print(
                label,
                "busy for",
                round((sums(_METRICS_PAGE).get("rose_step_seconds_sum", 0.0) - busy) / seconds, 2),
                flush=True,
            )
            if label == str(counts[-1]):
                if not args.no_numerics:
                    result["numerics"] = numerics(folder)
                result["rows"].append(asyncio.run(killed_row(label, len(chosen))))
    result["machine"] = describe_machine()
    if args.output is not None:
        write_result(args.output, result)


if __name__ == "__main__":
    main()
