"""vLLM's side of the engine benchmark: the same shapes through `LLM.embed`. Run by `engine_bench.py`.

python vllm_bench.py CHECKPOINT '{"1 x 16": [16], ...}' ANSWER.json
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_LOGGING_LEVEL="WARNING"
)


def main() -> None:
    """Measure every shape."""
    from vllm import LLM, TokensPrompt

    folder, shapes, answer = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    llm = LLM(
        model=folder,
        runner="pooling",
        dtype="bfloat16",
        max_model_len=8192,
        gpu_memory_utilization=0.4,
        max_num_batched_tokens=65536,
        max_num_seqs=256,
        seed=0,
        disable_log_stats=True,
    )
    rng = random.Random(0)
    rows = {}
    for name, lengths in shapes.items():
        taken = []
        for round_ in range(15):
            prompts = [TokensPrompt(prompt_token_ids=rng.choices(range(1000, 150_000), k=n)) for n in lengths]
            began = time.perf_counter()
            llm.embed(prompts, use_tqdm=False)
            if round_ >= 3:
                taken.append((time.perf_counter() - began) * 1e3)
        taken.sort()
        p50 = taken[len(taken) // 2]
        rows[name] = {
            "p50_ms": round(p50, 2),
            "p99_ms": round(taken[-1], 2),
            "tokens_per_s": round(sum(lengths) / p50 * 1e3),
        }
    answer.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
