"""vLLM's side of the engine benchmarks: the same shapes through `LLM.embed` or another of its calls. Run by them.

python vllm_bench.py CHECKPOINT '{"1 x 16": [16], ...}' ANSWER.json [OPTIONS]

OPTIONS, a JSON object: `call`, the method's name; `highest_token`; `rounds` that count; `llm`, more arguments of `LLM`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_LOGGING_LEVEL="WARNING"
)


def main() -> None:
    """Measure every shape."""
    from vllm import LLM, TokensPrompt

    folder, shapes, answer = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    options: dict[str, Any] = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    tokens, rounds = range(1000, options.get("highest_token", 150_000)), options.get("rounds", 12)
    arguments = {
        "runner": "pooling",
        "dtype": "bfloat16",
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.4,
        "max_num_batched_tokens": 65536,
        "max_num_seqs": 256,
        "seed": 0,
        "disable_log_stats": True,
    }
    llm = LLM(model=folder, **{**arguments, **options.get("llm", {})})
    call = getattr(llm, options.get("call", "embed"))
    rng = random.Random(0)
    rows = {}
    for name, lengths in shapes.items():
        taken = []
        for round_ in range(3 + rounds):
            prompts = [TokensPrompt(prompt_token_ids=rng.choices(tokens, k=n)) for n in lengths]
            began = time.perf_counter()
            call(prompts, use_tqdm=False)
            if round_ >= 3:
                taken.append((time.perf_counter() - began) * 1e3)
        taken.sort()
        p50 = taken[len(taken) // 2]
        rows[name] = {
            "p50_ms": round(p50, 2),
            "p90_ms": round(taken[len(taken) * 9 // 10], 2),
            "p99_ms": round(taken[-1], 2),
            "tokens_per_s": round(sum(lengths) / p50 * 1e3),
        }
    answer.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
