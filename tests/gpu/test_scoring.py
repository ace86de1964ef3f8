"""Every head of a reranker on a GPU against the same on the CPU in float32, recordings against eager."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from rose_backend.config import Activation, EngineConfig, HeadConfig, PoolingMode, ScoreConfig, ScoreHead
from rose_backend.core import Batch, Field, Float32Array, Request
from rose_backend.cuda_runner import CudaRunner
from rose_backend.engine import RoseEngine
from rose_backend.packer import TokenPacker
from tests.gpu.test_engine import _sequences

_LENGTHS = [3, 16, 31, 33, 64, 65, 127, 129, 255, 256, 257, 500, 512]
_SHAPE = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 600,
    "num_labels": 1,
}
_DECODER = {**_SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128}
_CLS, _LAST = PoolingMode.CLS, PoolingMode.LAST


@dataclass(frozen=True)
class _Case:
    make: Callable[[], PreTrainedModel]
    score: ScoreConfig


def _modernbert(pooling: str) -> PreTrainedModel:
    config = ModernBertConfig(
        **_SHAPE, classifier_pooling=pooling, classifier_bias=True, norm_bias=True, pad_token_id=0
    )
    return ModernBertForSequenceClassification(config)


def _prediction(pooling: PoolingMode) -> ScoreConfig:
    return ScoreConfig(ScoreHead.PREDICTION, pooling, inner=Activation.GELU, norm_bias=True)


_CASES = {
    "bert": _Case(
        lambda: BertForSequenceClassification(BertConfig(**_SHAPE)),
        ScoreConfig(ScoreHead.POOLER, _CLS, token_types=True),
    ),
    "xlm-roberta": _Case(
        lambda: XLMRobertaForSequenceClassification(XLMRobertaConfig(**_SHAPE, pad_token_id=1, type_vocab_size=1)),
        ScoreConfig(ScoreHead.CLASSIFIER, _CLS),
    ),
    "modernbert cls": _Case(lambda: _modernbert("cls"), _prediction(_CLS)),
    "modernbert mean": _Case(lambda: _modernbert("mean"), _prediction(PoolingMode.MEAN)),
    "qwen3 classifier": _Case(
        lambda: Qwen3ForSequenceClassification(Qwen3Config(**_DECODER)),
        ScoreConfig(ScoreHead.SCORE, _LAST, bias=False),
    ),
    "qwen3 tied": _Case(
        lambda: Qwen3ForCausalLM(Qwen3Config(**_DECODER, tie_word_embeddings=True)),
        ScoreConfig(ScoreHead.TOKENS, _LAST, token_ids=(77, 5), tied=True),
    ),
    "qwen3 untied": _Case(
        lambda: Qwen3ForCausalLM(Qwen3Config(**_DECODER, tie_word_embeddings=False)),
        ScoreConfig(ScoreHead.TOKENS, _LAST, token_ids=(77, 5)),
    ),
}


def _saved(case: _Case, folder: Path) -> EngineConfig:
    torch.manual_seed(4)
    model = case.make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("classifier", "pooler", "head", "score")):
                parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.05)
    model.save_pretrained(folder)
    return EngineConfig(folder, 512, HeadConfig(), token_budget=4096, score=case.score)


def _batch(config: EngineConfig, engine: RoseEngine, lengths: list[int]) -> Batch:
    """A request for each sequence; every third has no second text."""
    assert config.score is not None
    typed = config.score.token_types
    queue = deque(
        Request(
            ids,
            np.array([len(ids)], np.int32),
            lambda _: None,
            False,
            fields={Field.TYPE_FROM: np.array([len(ids) // 2], np.int32)} if typed and index % 3 else {},
        )
        for index, ids in enumerate(_sequences(lengths))
    )
    batch = TokenPacker(engine.budgets.tokens, engine.config.max_sequences).take(queue)
    assert batch is not None
    assert not queue
    return batch


def _logits(engine: RoseEngine, batch: Batch) -> Float32Array:
    rows = np.empty(batch.num_sequences, np.float32)
    rows[batch.order] = engine.step(batch).numpy()[:, 0]
    return rows


@pytest.mark.parametrize("lengths", [_LENGTHS, [20, 24], [1, 40, 3, 7]], ids=["many", "full bucket", "few"])
@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES.keys())
def test_against_the_cpu(tmp_path: Path, case: _Case, lengths: list[int]) -> None:
    config = _saved(case, tmp_path)
    on_cpu = RoseEngine(config)
    expected = _logits(on_cpu, _batch(config, on_cpu, lengths))
    on_cpu.close()
    for dtype in ("float32", "bfloat16"):
        engine = RoseEngine(replace(config, device="cuda:0", dtype=dtype))
        batch = _batch(config, engine, lengths)
        eager, _, replayed = (_logits(engine, batch) for _ in range(3))
        engine.close()
        assert np.array_equal(eager, replayed)
        # Of logits about one in size; in bfloat16 a token vector is off by about a hundredth.
        assert np.abs(replayed - expected).max() <= (1e-4 if dtype == "float32" else 5e-2)


def test_types_change_from_batch_to_batch_in_one_recording(tmp_path: Path) -> None:
    config = _saved(_CASES["bert"], tmp_path)
    engine = RoseEngine(replace(config, device="cuda:0"))  # float32 is not recorded
    batch = _batch(config, engine, [40, 40, 40])
    for _ in range(3):
        typed = _logits(engine, batch)
    untyped = _logits(engine, replace(batch, fields={}))
    again = _logits(engine, batch)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    assert runner.graphs.counters.replays >= 3
    engine.close()
    assert np.array_equal(typed, again)
    assert np.abs(typed - untyped)[1:].max() > 1e-4
    assert typed[0] == untyped[0]


def test_a_step_never_waits(tmp_path: Path) -> None:
    config = _saved(_CASES["bert"], tmp_path)
    engine = RoseEngine(replace(config, device="cuda:0"))
    batch = _batch(config, engine, _LENGTHS)
    for _ in range(3):
        _logits(engine, batch)
    steps: list[Any] = []
    try:
        torch.cuda.set_sync_debug_mode("error")
        steps = [engine.step(batch) for _ in range(2)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for rows in steps:
        rows.wait()
    engine.close()
