"""What the gateway costs: beside direct gRPC on a real engine, and by itself on one that answers at once.

One run on one machine, ways taking turns. Without `--checkpoint` the real engine is all-MiniLM-L6-v2's.

    python loadtests/gateway_bench.py [--workers 1 8] [--checkpoint FOLDER] [--quick] \\
        [--output loadtests/results/gateway-NAME.json]

The rows named `dummy` ask a Triton model of a few lines that gives zeros: it stands for nothing but "no engine at all",
so that the gateway's own throughput and processor time show. Load generator, server and gateway share the machine's
cores; the machine's description says how many there are.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

from closed_loop import SENDERS, Load, Target, draw_texts, measure
from environment import describe_machine, write_result

from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server

_CORES = len(os.sched_getaffinity(0))
_WORDS, _BULK_TEXTS = 24, 1000
_TICKS = os.sysconf("SC_CLK_TCK")

_DUMMY_CONFIG = Template("""name: "embed"
backend: "python"
max_batch_size: 256
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
output [
  { name: "EMBEDDING" data_type: TYPE_FP32 dims: [ -1, 384 ] },
  { name: "TOKEN_COUNT" data_type: TYPE_INT32 dims: [ -1 ] }
]
dynamic_batching { max_queue_delay_microseconds: 0 }
instance_group [ { kind: KIND_CPU count: $instances } ]
""")
_DUMMY_MODEL = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            shape = pb_utils.get_input_tensor_by_name(request, "TEXT").shape()
            outputs = [
                pb_utils.Tensor("EMBEDDING", np.zeros((*shape, 384), np.float32)),
                pb_utils.Tensor("TOKEN_COUNT", np.ones(shape, np.int32)),
            ]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""


@dataclass(frozen=True)
class Amounts:
    """How much is measured.

    Attributes:
        rounds: of each way, one after the other.
        single: requests of a round, one at a time.
        many: requests under way together, in all.
        concurrency: how many are under way then.
    """

    rounds: int = 5
    single: int = 400
    many: int = 20_000
    concurrency: int = 64


_QUICK = Amounts(rounds=2, single=50, many=1500)


@contextmanager
def gateway(url: str, workers: int) -> Iterator[tuple[Target, int]]:
    """`rose gateway` before a server; its route and its process id."""
    command = [sys.executable, "-m", "rose_client.cli", "gateway", f"--url={url}", "--port=0", f"--workers={workers}"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        line = running.stdout.readline()
        if not line:
            raise RuntimeError(f"the gateway ended with status {running.wait()}")
        yield Target("openai", f"{line.split()[-1]}/v1/embeddings", "embed"), running.pid
    finally:
        running.terminate()
        running.wait(60)


@contextmanager
def serving(folder: Path, models: list[str]) -> Iterator[str]:
    """A tritonserver; its gRPC endpoint."""
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        server = ServerProcess(find_server(), folder, models, Endpoints.free("127.0.0.1"), log)
        with server:
            server.wait_until_ready()
            yield server.endpoints.grpc


def write_dummy(folder: Path) -> Path:
    """A repository whose model `embed` gives zeros at once."""
    (folder / "embed" / "1").mkdir(parents=True)
    instances = max(1, min(8, _CORES // 4))
    (folder / "embed" / "config.pbtxt").write_text(_DUMMY_CONFIG.substitute(instances=instances))
    (folder / "embed" / "1" / "model.py").write_text(_DUMMY_MODEL)
    return folder


def processor_seconds(pid: int) -> float:
    """Processor time so far of a process and all below it."""
    parents, seconds = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    family, found = {pid}, 1
    while found:
        below = {child for child, parent in parents.items() if parent in family} - family
        found = len(below)
        family |= below
    return sum(seconds.get(member, 0.0) for member in family)


def single_row(name: str, direct: Target, through: Target, amounts: Amounts) -> dict[str, Any]:
    """p50 of requests one at a time, both ways."""
    load = Load(_WORDS, 1, 1, amounts.single)
    p50: dict[str, list[float]] = {"direct": [], "gateway": []}
    for _ in range(amounts.rounds):
        for way, target in (("direct", direct), ("gateway", through)):
            p50[way].append(measure(target, load)["p50_ms"])
    medians = {way: round(statistics.median(values), 3) for way, values in p50.items()}
    return {
        "row": f"{name}, one at a time, {_WORDS} words",
        **{f"{way}_p50_ms": value for way, value in medians.items()},
        "gateway_adds_ms": round(medians["gateway"] - medians["direct"], 3),
        "p50_ms_of_rounds": p50,
    }


def bulk_row(direct: Target, through: Target, amounts: Amounts) -> dict[str, Any]:
    """One request of many texts: as one gRPC request, by our client, which splits it, and through the gateway."""
    ways = {"one_grpc_request": direct, "our_client": replace(direct, kind="ours"), "gateway": through}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    asyncio.run(_time_bulk(ways, seconds, amounts.rounds))
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "row": f"one request of {_BULK_TEXTS} texts of {_WORDS} words",
        **{f"{way}_seconds": round(value, 4) for way, value in medians.items()},
        "gateway_over_one_grpc_request": round(medians["gateway"] / medians["one_grpc_request"], 3),
        "gateway_over_our_client": round(medians["gateway"] / medians["our_client"], 3),
    }


async def _time_bulk(ways: dict[str, Target], seconds: dict[str, list[float]], rounds: int) -> None:
    texts = draw_texts(random.Random(9), _BULK_TEXTS, _WORDS)
    senders = {way: await _bulk_sender(target) for way, target in ways.items()}
    for send, _ in senders.values():
        await send(texts[:64])
    for _ in range(rounds):
        for way, (send, _) in senders.items():
            began = time.perf_counter()
            await send(texts)
            seconds[way].append(time.perf_counter() - began)
    for _, close in senders.values():
        await close()


async def _bulk_sender(target: Target) -> tuple[Callable[[list[str]], Awaitable[Any]], Callable[[], Awaitable[None]]]:
    if target.kind == "ours":
        from rose_client import AsyncRoseClient

        client = AsyncRoseClient(target.address, target.model, timeout=300)
        return client.embed, client.close
    return await SENDERS[target.kind](target)


def many_row(name: str, target: Target, amounts: Amounts, pid: int | None = None, workers: int = 0) -> dict[str, Any]:
    """Requests a second with many under way, and what each costs the gateway."""
    load = Load(_WORDS, 1, amounts.concurrency, amounts.many, processes=max(1, min(16, _CORES // 2)))
    measure(target, replace(load, num_requests=max(amounts.concurrency, amounts.many // 10)))
    before = processor_seconds(pid) if pid is not None else 0.0
    row = {"row": name, "workers": workers, **measure(target, load)}
    if pid is not None:
        # What every process of the load generator sends before the clock starts is counted too: a few requests.
        spent = processor_seconds(pid) - before
        row["gateway_cpu_ms_per_request"] = round(spent / amounts.many * 1e3, 3)
    return row


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="gateways of so many processes")
    parser.add_argument("--checkpoint", type=Path, help="serve this as the real engine")
    parser.add_argument("--device", default="auto", help="of the real engine")
    parser.add_argument("--concurrency", type=int, default=Amounts.concurrency, help="requests under way together")
    parser.add_argument("--quick", action="store_true", help="few requests: does it run, not how fast")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    amounts = replace(_QUICK if args.quick else Amounts(), concurrency=args.concurrency)
    checkpoint = {"checkpoint": str(args.checkpoint.resolve())} if args.checkpoint else {}
    result: dict[str, Any] = {"benchmark": "gateway", "model": args.checkpoint and args.checkpoint.name, "rows": []}

    def note(row: dict[str, Any]) -> None:
        result["rows"].append(row)
        print(row, flush=True)

    with tempfile.TemporaryDirectory(prefix="rose-gateway-bench-") as scratch:
        with serving(write_dummy(Path(scratch) / "dummy"), ["embed"]) as url:
            direct = Target("triton", url, "embed")
            with gateway(url, 1) as (through, _):
                measure(through, Load(_WORDS, 1, 1, 50))
                note(single_row("dummy", direct, through, amounts))
            note(many_row("dummy, direct", direct, amounts))
            for workers in args.workers:
                with gateway(url, workers) as (through, pid):
                    note(many_row("dummy, gateway", through, amounts, pid, workers))
        store = Repository(Path(scratch) / "repository")
        store.add(Pipeline(**checkpoint, devices=(args.device,)))
        with serving(store.folder, ["embed"]) as url:
            direct = Target("triton", url, "embed")
            with gateway(url, 1) as (through, _):
                measure(direct, Load(_WORDS, 1, 1, 50))
                note(single_row("real engine", direct, through, amounts))
            note(many_row("real engine, direct", direct, amounts))
            for workers in args.workers:
                with gateway(url, workers) as (through, pid):
                    note(many_row("real engine, gateway", through, amounts, pid, workers))
            with gateway(url, 1) as (through, _):
                note(bulk_row(direct, through, amounts))  # last: it uses gRPC in this process, which then cannot fork
    result["machine"] = describe_machine()
    if args.output is not None:
        write_result(args.output, result)


if __name__ == "__main__":
    main()
