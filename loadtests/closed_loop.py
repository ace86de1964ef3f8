"""Load on an embedding server, text in and vectors out, with the same client for every server.

Closed loop: each of `concurrency` workers sends its next request when it has the answer to the last. Open loop:
requests leave at random moments (Poisson) whatever the answers do, so that a slow server shows. Several processes
share the load, so that the client is not what is measured. Texts are random common words, drawn afresh per process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORDS = Path(__file__).with_name("words.txt").read_text().split()
_POOL = 32  # requests a process draws from

Send = Callable[[list[str]], Awaitable[None]]


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        kind: `triton` (KServe gRPC: TEXT to EMBEDDING) or `openai` (`/v1/embeddings`, base64 answers).
        address: `host:port`, or the route's URL.
        model: its name there.
    """

    kind: str
    address: str
    model: str


@dataclass(frozen=True)
class Load:
    """What is sent.

    Attributes:
        num_words: of each text.
        num_texts: of each request.
        concurrency: requests under way (closed loop).
        num_requests: in all.
        rate: requests a second (open loop); None: closed loop.
        processes: clients at most.
    """

    num_words: int
    num_texts: int
    concurrency: int
    num_requests: int
    rate: float | None = None
    processes: int = 8


def draw_texts(rng: random.Random, num_texts: int, num_words: int) -> list[str]:
    """Texts of random common words."""
    return [" ".join(rng.choices(WORDS, k=num_words)) for _ in range(num_texts)]


def measure(target: Target, load: Load) -> dict[str, Any]:
    """Run a load to its end; latencies in ms, rates a second, and what was sent."""
    num_processes = min(load.concurrency, load.processes)
    context = multiprocessing.get_context("fork")  # cheap; nothing here has used gRPC before
    start, queue = context.Barrier(num_processes), context.Queue()
    workers = [
        context.Process(target=_process, args=(queue, target, load, index, num_processes, start))
        for index in range(num_processes)
    ]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    latencies = sorted(latency for taken, _, _ in results for latency in taken)
    # perf_counter is one clock for all processes on Linux
    seconds = max(ended for _, _, ended in results) - min(began for _, began, _ in results)
    rate = len(latencies) / seconds
    return {
        **asdict(load),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 2),
        "requests_per_s": round(rate, 1),
        "texts_per_s": round(rate * load.num_texts, 1),
    }


def _process(queue: Any, target: Target, load: Load, index: int, num_processes: int, start: Any) -> None:
    queue.put(asyncio.run(_drive(target, load, index, num_processes, start)))


async def _drive(
    target: Target, load: Load, index: int, num_processes: int, start: Any
) -> tuple[list[float], float, float]:
    send, close = await SENDERS[target.kind](target)
    rng = random.Random(1000 * load.concurrency + index)
    pool = [draw_texts(rng, load.num_texts, load.num_words) for _ in range(_POOL)]
    for batch in pool[:3]:
        await send(batch)
    await asyncio.to_thread(start.wait)
    latencies: list[float] = []
    began = time.perf_counter()
    share = load.num_requests // num_processes

    async def one(due: float) -> None:
        await send(rng.choice(pool))
        latencies.append(time.perf_counter() - due)

    if load.rate is None:
        remaining = share

        async def worker() -> None:
            nonlocal remaining
            while remaining > 0:
                remaining -= 1
                await one(time.perf_counter())

        await asyncio.gather(*(worker() for _ in range(load.concurrency // num_processes)))
    else:
        due, tasks = began, []
        for _ in range(share):
            due += rng.expovariate(load.rate / num_processes)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(due)))  # late sending counts as the server's time, not as nobody's
        await asyncio.gather(*tasks)
    ended = time.perf_counter()
    await close()
    return latencies, began, ended


async def _openai_sender(target: Target) -> tuple[Send, Callable[[], Awaitable[None]]]:
    import numpy as np
    import orjson
    import pybase64
    from lean_http import LeanHttp

    client = LeanHttp(target.address)

    async def send(batch: list[str]) -> None:
        body = {"model": target.model, "input": batch, "encoding_format": "base64"}
        answer = orjson.loads(await client.post(orjson.dumps(body)))
        vectors = [np.frombuffer(pybase64.b64decode(entry["embedding"]), "<f4") for entry in answer["data"]]
        if len(vectors) != len(batch) or not all(len(vector) for vector in vectors):
            raise RuntimeError("not a vector for every text")

    return send, client.close


async def _triton_sender(target: Target) -> tuple[Send, Callable[[], Awaitable[None]]]:
    import numpy as np
    import tritonclient.grpc.aio as grpcclient

    client = grpcclient.InferenceServerClient(target.address)
    wanted = [grpcclient.InferRequestedOutput("EMBEDDING")]

    async def send(batch: list[str]) -> None:
        tensor = grpcclient.InferInput("TEXT", [1, len(batch)], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode() for text in batch]], dtype=object))
        result = await client.infer(target.model, [tensor], outputs=wanted)
        if result.as_numpy("EMBEDDING").shape[1] != len(batch):
            raise RuntimeError("not a vector for every text")

    return send, client.close


SENDERS = {"openai": _openai_sender, "triton": _triton_sender}
