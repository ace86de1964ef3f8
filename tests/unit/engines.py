"""Tiny random checkpoints through the engine on the CPU, next to what transformers makes of them."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rose_backend.attention.base import Attentions, RaggedLayout
from rose_backend.attention.sdpa import SdpaBackend
from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.engine import RoseEngine
from rose_backend.kernels.torch_ops import TorchOps
from rose_backend.models.registry import load_model
from rose_backend.packer import TokenPacker
from tests.support.vectors import assert_close
from tests.unit.builders import request_of

LIMIT = 24
"""`max_position_embeddings` of the tiny models."""

LENGTHS = {
    "unequal": (1, 2, LIMIT - 1, LIMIT, 7, 3),
    "equal": (5, 5, 5, LIMIT, LIMIT, 1, 1),
    "alone": (LIMIT,),
    "one token": (1,),
}


def sequences(lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    draw = random.Random(len(lengths))
    return [[draw.randrange(vocab_size) for _ in range(length)] for length in lengths]


def engine_on(folder: Path, pooling: PoolingMode = PoolingMode.MEAN, *, normalize: bool = False) -> RoseEngine:
    return RoseEngine(EngineConfig(folder, LIMIT, HeadConfig(pooling, normalize)))


def embed(engine: RoseEngine, ids: list[list[int]], *, normalize: bool = False) -> npt.NDArray[np.float32]:
    """All sequences in one batch; rows in the order given."""
    batch = TokenPacker(10_000, 1_000).take(deque([request_of(ids, normalize=normalize)]))
    assert batch is not None
    rows = np.empty((len(ids), engine.dim), np.float32)
    rows[batch.order] = engine.step(batch).numpy()
    return rows


def pooled(hidden: torch.Tensor, pooling: PoolingMode) -> torch.Tensor:
    """One sequence's `[tokens, hidden]`, as the names of the modes say."""
    count = len(hidden)
    weights = torch.arange(1.0, count + 1)[:, None]
    rows = {
        PoolingMode.CLS: hidden[0],
        PoolingMode.MAX: hidden.max(0).values,
        PoolingMode.MEAN: hidden.mean(0),
        PoolingMode.MEAN_SQRT: hidden.sum(0) / count**0.5,
        PoolingMode.WEIGHTED_MEAN: (hidden * weights).sum(0) / weights.sum(),
        PoolingMode.LAST: hidden[-1],
    }
    return rows[pooling]


def expected(model: torch.nn.Module, ids: list[list[int]], pooling: PoolingMode) -> npt.NDArray[np.float32]:
    """The stock model in float32, one sequence at a time, without any mask."""
    with torch.inference_mode():
        rows = [pooled(model(torch.tensor([row])).last_hidden_state[0], pooling) for row in ids]
    return torch.stack(rows).numpy()


def randomised(model: torch.nn.Module, *, centre: float = 1.0, spread: float = 0.3) -> torch.nn.Module:
    """Every parameter random, norms and biases included, so that each one left out shows.

    Weights of norms lie around `centre`, those of products around zero; many layers of a large `spread` would make
    more of rounding than of mistakes.
    """
    torch.manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) * (spread if parameter.dim() > 1 else 0.2)
            parameter.copy_(noise + centre if "norm" in name.lower() and name.endswith("weight") else noise)
    return model.eval()


def rewrite(folder: Path, *without: str, **changes: Any) -> None:
    """Change keys of a checkpoint's `config.json`, or take some away."""
    config = json.loads((folder / "config.json").read_text())
    for key in without:
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def hidden_states(
    folder: Path, ids: list[list[int]], token_types: list[list[int]] | None = None
) -> tuple[torch.Tensor, ...]:
    """Every token's vector, by sequence, of a checkpoint on the CPU: all sequences in one ragged batch."""
    model = load_model(folder, torch.device("cpu"), torch.float32)
    lengths = [len(row) for row in ids]
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    layout = RaggedLayout(offsets, sum(lengths), max(lengths))
    attends = Attentions.open([SdpaBackend(geometry, TorchOps()) for geometry in model.geometries], layout)
    attends.plan(offsets)
    flat = [
        torch.tensor([number for row in rows for number in row], dtype=torch.int32) for rows in (ids, token_types or [])
    ]
    with torch.inference_mode():
        hidden = model(flat[0], attends, token_types=None if token_types is None else flat[1])
    return hidden.split(lengths)


def assert_equals(folder: Path, model: Callable[..., Any], ids: list[list[int]], **arguments: Any) -> None:
    """Every token's vector is that of the stock model in float32, which sees one sequence at a time and no mask."""
    for actual, row in zip(hidden_states(folder, ids), ids, strict=True):
        with torch.inference_mode():
            assert_close(actual, model(torch.tensor([row]), **arguments).last_hidden_state[0])
