"""SPLADE on a GPU against transformers and its rule by hand, recordings against eager."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode, SpladeConfig
from rose_backend.core import FLOAT, Batch, Float32Array, Output, Request
from rose_backend.engine import RoseEngine
from rose_backend.packer import TokenPacker
from tests.gpu.test_engine import _sequences
from tests.support.splade import drawn_masked_lm

_LENGTHS = [1, 2, 16, 31, 33, 64, 65, 127, 129, 255, 256, 257, 500, 512]
_VOCAB = 10_000  # neither one part of the vocabulary nor several whole ones
_SHAPE = {
    "vocab_size": _VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 512,
    "max_position_embeddings": 512,
}


def _batch(engine: RoseEngine, lengths: list[int], outputs: Output) -> Batch:
    queue = deque(
        Request(ids, np.array([len(ids)], np.int32), lambda _: None, False, outputs=outputs)
        for ids in _sequences(lengths)
    )
    batch = TokenPacker(engine.budgets.tokens, engine.config.max_sequences).take(queue)
    assert batch is not None
    assert not queue
    return batch


def _rows(engine: RoseEngine, batch: Batch) -> dict[Output, Float32Array]:
    found = {}
    for form, values in engine.step(batch).results().items():
        found[form] = np.empty_like(values)
        found[form][batch.order] = values
    return found


@pytest.mark.parametrize("largest", [True, False], ids=["max", "sum"])
@pytest.mark.parametrize("lengths", [_LENGTHS, [20, 24], [1, 40, 3, 7]], ids=["many", "full bucket", "few"])
def test_equals_transformers(tmp_path: Path, lengths: list[int], largest: bool) -> None:
    model = drawn_masked_lm(**_SHAPE)
    model.save_pretrained(tmp_path)
    right = []
    with torch.inference_mode():
        for ids in _sequences(lengths):
            weights = model(torch.from_numpy(ids).long()[None]).logits[0].relu().log1p()
            right.append((weights.amax(0) if largest else weights.sum(0)).numpy())
    expected = np.stack(right)
    head = HeadConfig(PoolingMode.MAX, normalize=False, splade=SpladeConfig(largest=largest))
    for dtype in ("float32", "bfloat16"):
        config = EngineConfig(tmp_path, 512, head, device="cuda:0", dtype=dtype, token_budget=4096)
        engine = RoseEngine(config)
        batch = _batch(engine, lengths, FLOAT | Output.VOCABULARY)
        eager, _, replayed = (_rows(engine, batch) for _ in range(3))
        engine.close()
        for form in (FLOAT, Output.VOCABULARY):
            assert np.array_equal(eager[form], replayed[form])
            found = replayed[form]
            if dtype == "float32":
                assert (np.abs(found - expected) <= 1e-4 * np.maximum(expected.max(1, keepdims=True), 1)).all()
            else:
                cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
                assert cosines.min() >= 0.999


def test_a_step_never_waits(tmp_path: Path) -> None:
    drawn_masked_lm(**_SHAPE).save_pretrained(tmp_path)
    head = HeadConfig(PoolingMode.MAX, normalize=False, splade=SpladeConfig())
    engine = RoseEngine(EngineConfig(tmp_path, 512, head, device="cuda:0", token_budget=4096))
    batch = _batch(engine, _LENGTHS, Output.VOCABULARY)
    for _ in range(3):
        engine.step(batch).wait()
    steps = []
    try:
        torch.cuda.set_sync_debug_mode("error")
        steps = [engine.step(batch) for _ in range(2)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for rows in steps:
        rows.wait()
    engine.close()
