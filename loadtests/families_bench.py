"""A reranker and an encoder in the engine alone, beside vLLM, in one run: token ids in, logits or vectors on the host.

Qwen3-Reranker-0.6B's geometry scores 5, 25 and 50 documents of 512 tokens for one query each; bge-base's embeds 1 x 32,
32 x 128 and 256 x 128 (sequences x tokens). A row is the median and the ninth decile of one request at a time. Weights
and token ids are random. Both are compared with transformers in float32 on the same device, in the same run.

    python loadtests/families_bench.py --output loadtests/results/families-h200.json [--vllm-python PATH]
    python loadtests/families_bench.py --device cpu --quick    # two narrow layers: whether it runs, not how fast
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_bench import Lengths, embed, record, run_vllm, vectors_of
from environment import describe_machine, write_result
from random_checkpoint import BGE_BASE, QWEN3_0_6B, write_bert, write_qwen3
from tokenizers import Tokenizer
from transformers import BertModel, Qwen3ForCausalLM

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode, ScoreConfig, ScoreHead
from rose_backend.core import Float32Array, Int32Array, Request
from rose_backend.cuda_runner import CudaRunner
from rose_backend.engine import RoseEngine

SCORING: dict[str, Lengths] = {f"{count} x 512": [512] * count for count in (5, 25, 50)}
EMBEDDING: dict[str, Lengths] = {"1 x 32": [32], "32 x 128": [128] * 32, "256 x 128": [128] * 256}
_SCORED_LENGTHS = [512] * 50 + [1, 2, 31, 64, 65, 127, 128, 129, 511, 513, 1024, 2048]
_EMBEDDED_LENGTHS = [1, 2, 16, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 257, 511, 512] + [128] * 32
_LOWEST_TOKEN = 1000
_WARM_UPS = 4  # eager where nothing is recorded, first replays
LOWEST_COSINE = 0.999
"""Of a vector with the right one; and of all logits, taken as one vector, with the right ones."""
LARGEST_ERROR = 3 * math.sqrt(2 * (1 - LOWEST_COSINE))
"""Of a logit, in root mean squares of the right ones: three times what a token vector at that cosine is off by."""
_NARROW = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 2000}

Sequences = Sequence[Int32Array]


@dataclass(frozen=True)
class Family:
    """What is measured of one checkpoint.

    Attributes:
        name: in rows.
        config: of the engine.
        shapes: lengths of a request's sequences, by name.
        checked: lengths of the sequences that are compared.
        vocab_size: token ids are below it.
        oracle: right rows of sequences, `[num_sequences, dim]`, one sequence at a time.
        check: what is wrong with rows beside the right ones; figures for the result.
        vllm: options of `vllm_bench.py`.
    """

    name: str
    config: EngineConfig
    shapes: dict[str, Lengths]
    checked: Lengths
    vocab_size: int
    oracle: Callable[[Sequences], Float32Array]
    check: Callable[[Float32Array, Float32Array], dict[str, float | bool]]
    vllm: dict[str, Any]


def reranker(folder: Path, device: str, *, quick: bool, tokenizer: Path | None) -> Family:
    """A causal language model, whose logit is that of "yes" less that of "no" at the last token."""
    changes = {**_NARROW, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32} if quick else {}
    write_qwen3(folder, tokenizer=None if quick else tokenizer, **changes)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    yes, no = words.token_to_id("yes"), words.token_to_id("no")

    def oracle(sequences: Sequences) -> Float32Array:
        model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        rows = [model(_row(ids, device), use_cache=False, logits_to_keep=1).logits[0, -1] for ids in sequences]
        return torch.stack([row[yes] - row[no] for row in rows])[:, None].cpu().numpy()

    score = ScoreConfig(ScoreHead.TOKENS, PoolingMode.LAST, token_ids=(yes, no), tied=True)
    llm = {
        "hf_overrides": {
            "architectures": ["Qwen3ForSequenceClassification"],
            "classifier_from_token": ["no", "yes"],
            "is_original_qwen3_reranker": True,
        }
    }
    return Family(
        name="scoring, Qwen3-Reranker-0.6B geometry",
        config=EngineConfig(folder, 8192, HeadConfig(), device, score=score),
        shapes={"2 x 24": [24, 24]} if quick else SCORING,
        checked=[24, 1, 2, 17] if quick else _SCORED_LENGTHS,
        vocab_size={**QWEN3_0_6B, **changes}["vocab_size"],
        oracle=oracle,
        check=_check_logits,
        vllm={"call": "classify", "highest_token": 150_000, "llm": llm},
    )


def encoder(folder: Path, device: str, *, quick: bool) -> Family:
    """A BERT, whose vector is that of the first token, scaled to unit length."""
    config = {**BGE_BASE, "vocab_size": 30522, **({**_NARROW, "num_attention_heads": 2} if quick else {})}
    write_bert(folder, config)

    def oracle(sequences: Sequences) -> Float32Array:
        model = BertModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).to(device).eval()
        rows = [model(_row(ids, device)).last_hidden_state[0, 0] for ids in sequences]
        return torch.nn.functional.normalize(torch.stack(rows)).cpu().numpy()

    return Family(
        name="embedding, bge-base geometry",
        config=EngineConfig(folder, 512, HeadConfig(PoolingMode.CLS), device),
        shapes={"4 x 16": [16] * 4} if quick else EMBEDDING,
        checked=[16, 1, 2, 33] if quick else _EMBEDDED_LENGTHS,
        vocab_size=config["vocab_size"],
        oracle=oracle,
        check=_check_vectors,
        vllm={"call": "embed", "highest_token": 30_000, "llm": {"max_model_len": 512}},  # the first token, as here
    )


def measure(family: Family, rounds: int) -> tuple[list[dict[str, Any]], dict[str, float | bool]]:
    """The engine's rows, and how its numbers compare."""
    began = time.perf_counter()
    engine = RoseEngine(family.config)
    seconds = round(time.perf_counter() - began, 2)
    rng = np.random.default_rng(1)
    rows = []
    for name, lengths in family.shapes.items():
        if isinstance(engine.runner, CudaRunner):
            record(engine, lengths)
        taken = []
        for _ in range(_WARM_UPS + rounds):
            ids = rng.integers(_LOWEST_TOKEN, family.vocab_size, sum(lengths), dtype=np.int32)
            began = time.perf_counter()
            queue = deque([Request(ids, np.array(lengths, np.int32), lambda _: None)])
            for _, vectors in embed(engine, queue):
                vectors.wait()
            taken.append((time.perf_counter() - began) * 1e3)
        counted = sorted(taken[_WARM_UPS:])
        p50, p90 = counted[len(counted) // 2], counted[len(counted) * 9 // 10]
        rows.append(
            {"variant": "rose", "family": family.name, "shape": name, "p50_ms": round(p50, 2), "p90_ms": round(p90, 2)}
        )
        print(rows[-1], flush=True)
    sequences = [rng.integers(_LOWEST_TOKEN, family.vocab_size, length, dtype=np.int32) for length in family.checked]
    found = vectors_of(engine, sequences)
    budget = engine.budgets.tokens
    engine.close()
    del engine
    with torch.inference_mode():
        numerics = family.check(found, family.oracle(sequences))
    torch.cuda.empty_cache()
    print(family.name, numerics, flush=True)
    return rows, {"start_seconds": seconds, "token_budget": budget, **numerics}


def beside_vllm(python: str, family: Family, rounds: int) -> list[dict[str, Any]]:
    """vLLM's rows, or why there are none."""
    common = {"variant": "vllm", "family": family.name}
    try:
        answer = run_vllm(python, family.config.checkpoint, family.shapes, rounds=rounds, **family.vllm)
    except RuntimeError as cause:
        rows = [{**common, "failed": str(cause)}]
    else:
        rows = [{**common, "shape": name, **row} for name, row in answer.items()]
    for row in rows:
        print(row, flush=True)
    return rows


def _row(ids: Int32Array, device: str) -> torch.Tensor:
    return torch.from_numpy(ids).long()[None].to(device)


def _check_logits(found: Float32Array, right: Float32Array) -> dict[str, float | bool]:
    size = float(np.sqrt((right**2).mean()))
    cosine = float((found * right).sum() / np.linalg.norm(found) / np.linalg.norm(right))
    error = float(np.abs(found - right).max())
    scores = [1 / (1 + np.exp(-logits)) for logits in (found, right)]
    return {
        "cosine_of_logits": cosine,
        "root_mean_square_of_logits": size,
        "largest_logit_error": error,
        "largest_score_error": float(np.abs(scores[0] - scores[1]).max()),
        "within_limits": cosine >= LOWEST_COSINE and error <= LARGEST_ERROR * size,
    }


def _check_vectors(found: Float32Array, right: Float32Array) -> dict[str, float | bool]:
    cosines = (found * right).sum(1) / np.linalg.norm(found, axis=1)
    lowest = float(cosines.min())
    return {
        "lowest_cosine": lowest,
        "median_cosine": float(np.median(cosines)),
        "within_limits": lowest >= LOWEST_COSINE,
    }


def main() -> None:
    """Run both families; a result is written before vLLM starts, and again with its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", default="cuda:0", help="a torch device; on the CPU the engine computes in float32")
    parser.add_argument("--quick", action="store_true", help="two narrow layers and small requests")
    parser.add_argument("--rounds", type=int, default=30, help="requests of each shape that count")
    parser.add_argument("--checkpoints", type=Path, default=Path(tempfile.gettempdir()) / "rose-checkpoints")
    parser.add_argument("--tokenizer", type=Path, help="the reranker's tokenizer.json; otherwise one of a few words")
    parser.add_argument("--vllm-python", help="command of a Python that has vLLM")
    args = parser.parse_args()
    names = [f"families-{name}{'-quick' if args.quick else ''}" for name in ("reranker", "encoder")]
    families = [
        reranker(args.checkpoints / names[0], args.device, quick=args.quick, tokenizer=args.tokenizer),
        encoder(args.checkpoints / names[1], args.device, quick=args.quick),
    ]
    result: dict[str, Any] = {
        "benchmark": "families",
        "model": "random weights; the engine in bfloat16 on a GPU, in float32 on the CPU; vLLM in bfloat16",
        "limits": {"lowest_cosine": LOWEST_COSINE, "largest_logit_error_in_root_mean_squares": LARGEST_ERROR},
        "machine": describe_machine(),
        "numerics": {},
        "rows": [],
    }

    def write() -> None:
        if args.output is not None:
            write_result(args.output, result)

    for family in families:
        rows, result["numerics"][family.name] = measure(family, args.rounds)
        result["rows"] += rows
    write()
    if args.vllm_python:
        for family in families:
            result["rows"] += beside_vllm(args.vllm_python, family, args.rounds)
            write()
    wrong = [name for name, numbers in result["numerics"].items() if not numbers["within_limits"]]
    if wrong:
        sys.exit(f"numerics outside the limits: {wrong}")


if __name__ == "__main__":
    main()
