"""Large batches of models that pool one token: the last layer runs that token alone, to the same vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from rose_backend.config import PoolingMode
from tests.support.vectors import assert_close
from tests.unit.engines import LIMIT, embed, engine_on, expected, sequences
from tests.unit.tiny_models import KINDS, VOCAB, tiny_model


@pytest.mark.parametrize("pooling", list(PoolingMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_more_than_a_thousand_tokens(tmp_path: Path, kind: str, pooling: PoolingMode) -> None:
    model = tiny_model(kind)
    model.save_pretrained(tmp_path)
    ids = sequences([LIMIT, 1, 17, LIMIT - 1] * 30, VOCAB)
    assert sum(map(len, ids)) > 1024
    assert_close(embed(engine_on(tmp_path, pooling), ids), expected(model, ids, pooling))
