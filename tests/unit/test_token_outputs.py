"""Outputs of single tokens: last hidden states, and BGE-M3's sparse and multi-vector heads by FlagEmbedding's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rose_backend.admission import Limits
from rose_backend.config import EngineConfig, HeadConfig, PoolingMode, TokenHeads
from rose_backend.core import FLOAT, Output, Request
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_backend.metrics import NullMetrics
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.outputs import OutputRules
from tests.support.bge_m3 import assert_flag_embedding, make_m3
from tests.support.checkpoints import make_bert
from tests.support.vectors import assert_close
from tests.unit.builders import Answers
from tests.unit.engines import LIMIT, engine_on, hidden_states, sequences
from tests.unit.served import Served

_TEXTS = ["tea tea pot", "harbour", "", "a stone wall stone rope stone", "rope tea pot"]


def test_the_heads_of_bge_m3(tmp_path: Path) -> None:
    model = make_m3(tmp_path)
    served = Served(read_checkpoint(tmp_path))
    everything = RequestOptions(outputs=("float", "sparse", "token"))
    made = served.codes_together(
        [
            (_TEXTS, everything),
            (_TEXTS, RequestOptions()),
            (["tea"], RequestOptions(outputs=("sparse",))),
            (_TEXTS[::-1], everything),
        ]
    )
    assert_flag_embedding(made[0], tmp_path, model, _TEXTS)
    assert_flag_embedding(made[3], tmp_path, model, _TEXTS[::-1])
    assert set(made[1]) == {"EMBEDDING"}
    assert set(made[2]) == {"SPARSE_INDEX", "SPARSE_WEIGHT", "SPARSE_LENGTHS"}
    head = read_checkpoint(tmp_path)
    assert head.head.tokens.weightless == (0, 2, 1, 3)
    assert {"sparse_linear.pt", "colbert_linear.pt"} <= {path.name for path in head.files}


def test_token_vectors_of_any_checkpoint(tmp_path: Path) -> None:
    make_bert(tmp_path)
    engine = engine_on(tmp_path)
    ids = sequences((7, 3, 12, 1, 5), 101)
    expected = torch.cat(list(hidden_states(tmp_path, ids))).numpy()
    for budget, most in ((1000, 100), (12, 1), (13, 2)):  # spread over batches
        service = RoseService(engine, TokenPacker(budget, most), Limits(101, LIMIT), NullMetrics())
        requests = [
            Request(
                np.concatenate([np.array(row, np.int32) for row in ids]),
                np.array([len(row) for row in ids], np.int32),
                Answers(),
                normalize=False,
                outputs=outputs,
            )
            for outputs in (FLOAT, Output.TOKEN, Output.TOKEN | Output.BINARY)
        ]
        assert service.submit_all(requests) == [None] * 3
        service.close()
        outcomes: list[Any] = [request.reply.wait() for request in requests]  # type: ignore[attr-defined]
        for outcome in outcomes[1:]:
            assert_close(outcome[Output.TOKEN], expected)
        assert outcomes[2][Output.BINARY].tolist() == np.packbits(outcomes[0][FLOAT] > 0, axis=-1).tolist()


def test_refusals(tmp_path: Path) -> None:
    request = Request(np.array([5], np.int32), np.array([1], np.int32), Answers(), outputs=Output.SPARSE)
    with pytest.raises(InvalidArgumentError, match=r"has sparse, but this checkpoint has no sparse_linear\.pt"):
        OutputRules(HeadConfig(), 8).check(request)
    make_bert(tmp_path)
    path = tmp_path / "sparse_linear.pt"
    head = HeadConfig(PoolingMode.CLS, tokens=TokenHeads(sparse=path))
    for stored, words in (
        ({"weight": torch.zeros(1, 31), "bias": torch.zeros(1)}, r"weight has shape \[1, 31\], expected \[1, 32\]"),
        ({"weight": torch.zeros(2, 32), "bias": torch.zeros(2)}, "expected 1 weight a token, found 2"),
        ({"weight": torch.zeros(1, 32)}, "does not hold a weight and a bias"),
    ):
        torch.save(stored, path)
        with pytest.raises(CheckpointError, match=words):
            RoseEngine(EngineConfig(tmp_path, LIMIT, head))
    path.write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="not a readable file of tensors"):
        RoseEngine(EngineConfig(tmp_path, LIMIT, head))
