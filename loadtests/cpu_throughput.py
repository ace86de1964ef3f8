"""Texts per second of the whole path on the CPU, beside `SentenceTransformer.encode`, in one run.

Text goes in and vectors come out over gRPC: tokenization, transport and both of Triton's processes count. The two
take turns over the same texts, so that a change in the machine's speed meets both, and every vector is compared. What
counts is the median of the rounds' ratios: on a machine that others use too, a round may be far off.

    python loadtests/cpu_throughput.py [--texts 500] [--rounds 6] [--output loadtests/results/NAME.json]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from environment import describe_machine, write_result
from sentence_transformers import SentenceTransformer

from rose_client import AsyncRoseClient
from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT, resolve_checkpoint
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.tritonserver import find_server

_TEXTS_PER_REQUEST = 100
_REQUESTS_IN_FLIGHT = 4


def mixed_texts(model: SentenceTransformer, count: int, shortest: int, longest: int) -> list[str]:
    """Texts whose lengths are spread evenly from `shortest` to `longest` tokens, of words from the vocabulary."""
    rng = random.Random(0)
    words = sorted(word for word in model.tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    return [" ".join(rng.choices(words, k=rng.randint(shortest - 2, longest - 2))) for _ in range(count)]


async def embed_all(url: str, texts: list[str]) -> npt.NDArray[np.float32]:
    """Embed as a re-indexing job does: requests of 100 texts, four in flight."""
    slots = asyncio.Semaphore(_REQUESTS_IN_FLIGHT)
    async with AsyncRoseClient(url, timeout=600) as client:

        async def embed(part: list[str]) -> npt.NDArray[np.float32]:
            async with slots:
                return await client.embed(part)

        starts = range(0, len(texts), _TEXTS_PER_REQUEST)
        return np.concatenate(
            await asyncio.gather(*(embed(texts[start : start + _TEXTS_PER_REQUEST]) for start in starts))
        )


def main() -> None:
    """Run both, print the rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model = SentenceTransformer(str(resolve_checkpoint(DEFAULT_CHECKPOINT)), device="cpu")
    texts = mixed_texts(model, args.texts, 8, 256)
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        store = Repository(Path(scratch))
        store.add(Pipeline())
        with ServerProcess(find_server(), store.folder, ["embed"], Endpoints.free("127.0.0.1")) as server:
            server.wait_until_ready()
            asyncio.run(embed_all(server.endpoints.grpc, texts[:50]))
            model.encode(texts[:50], batch_size=32)
            for _ in range(args.rounds):
                began = time.perf_counter()
                ours = asyncio.run(embed_all(server.endpoints.grpc, texts))
                middle = time.perf_counter()
                theirs = model.encode(texts, batch_size=32)
                ended = time.perf_counter()
                rates = len(texts) / (middle - began), len(texts) / (ended - middle)
                difference = float(np.abs(ours - theirs).max())
                rounds.append(
                    {
                        "rose": rates[0],
                        "sentence_transformers": rates[1],
                        "ratio": rates[0] / rates[1],
                        "max_abs_difference": difference,
                    }
                )
                print(
                    f"rose {rates[0]:.1f} texts/s   sentence-transformers {rates[1]:.1f} texts/s   "
                    f"ratio {rates[0] / rates[1]:.2f}   largest difference {difference:.1e}",
                    flush=True,
                )
    ratio = statistics.median(item["ratio"] for item in rounds)
    print(f"median ratio {ratio:.2f}")
    sizes = {"texts": len(texts), "tokens": "8 to 256"}
    result = {"benchmark": "cpu_throughput", **sizes, "median_ratio": ratio, "rounds": rounds}
    if args.output is not None:
        write_result(args.output, {**result, "machine": describe_machine()})


if __name__ == "__main__":
    main()
