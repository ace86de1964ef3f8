"""`rose inspect` says of a whole checkpoint what serving it would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose_client.cli.main import app
from tests.support.cases import VOCAB_SIZE
from tests.support.checkpoints import copy_tokenizer, make_bert
from tests.support.rerankers import (
    make_bert_reranker,
    make_modernbert_reranker,
    make_qwen_reranker,
    make_roberta_reranker,
)
from tests.support.splade import make_splade
from tests.unit.engines import rewrite


def _inspect(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *arguments])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
        ({"hidden_act": "snake"}, "hidden_act 'snake' is not one of"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized weights are not served"),
        ({"num_hidden_layers": 3}, "has no tensor 'encoder.layer.2."),
        ({"vocab_size": VOCAB_SIZE + 1}, "expected [30523, 32]"),
        ({"hidden_size": None}, "hidden_size is None, not a positive number"),
    ],
    ids=str,
)
def test_refuses_what_an_engine_would(tmp_path: Path, minilm: Path, config: dict[str, Any], words: str) -> None:
    make_bert(tmp_path, vocab_size=VOCAB_SIZE)
    copy_tokenizer(minilm, tmp_path)
    result = _inspect(str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "missing" not in result.stdout
    rewrite(tmp_path, **config)
    result = _inspect(str(tmp_path))
    assert result.exit_code == 1
    assert words in " ".join(result.stderr.split())


def test_refuses_what_a_tokenizer_would(tmp_path: Path, minilm: Path) -> None:
    make_bert(tmp_path, vocab_size=VOCAB_SIZE)
    (tmp_path / "tokenizer.json").write_text("{}")
    result = _inspect(str(tmp_path))
    assert result.exit_code == 1
    assert "tokenizer.json is not a tokenizer" in " ".join(result.stderr.split())


@pytest.mark.parametrize("kind", ["bert", "modernbert", "roberta", "qwen", "qwen classifier", "splade"])
def test_rehearses_every_head(tmp_path: Path, minilm: Path, kind: str) -> None:
    make: dict[str, Callable[[], Path]] = {
        "bert": lambda: make_bert_reranker(tmp_path, minilm),
        "modernbert": lambda: make_modernbert_reranker(tmp_path, minilm),
        "roberta": lambda: make_roberta_reranker(tmp_path),
        "qwen": lambda: make_qwen_reranker(tmp_path),
        "qwen classifier": lambda: make_qwen_reranker(tmp_path, classifier=True),
        "splade": lambda: make_splade(tmp_path, minilm),
    }
    result = _inspect(str(make[kind]()), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["left_open"] == []
