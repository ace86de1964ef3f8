"""`config.json` beside the weights, in every family: keys as transformers reads them, and what contradicts weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from rose_backend.errors import CheckpointError
from rose_backend.models.registry import load_model
from rose_ensemble.modules import default_head
from tests.support.rerankers import (
    DOCUMENTS,
    QUERY,
    make_qwen_reranker,
    qwen_logits,
    template_ids,
    word_tokenizer,
)
from tests.support.vectors import assert_close, largest_difference
from tests.unit.engines import LENGTHS, LIMIT, assert_equals, randomised, rewrite, sequences
from tests.unit.scored import Scored

_VOCAB = 50
_SMALL = {
    "vocab_size": _VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LIMIT,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 16}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
_ENCODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(**_SMALL)),
    "xlm-roberta": lambda: XLMRobertaModel(XLMRobertaConfig(**{**_SMALL, "max_position_embeddings": LIMIT + 2})),
    "modernbert": lambda: ModernBertModel(ModernBertConfig(**_SMALL, **_SPECIAL)),
    "nomic_bert": lambda: NomicBertModel(NomicBertConfig(**_SMALL)),
}
_DECODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaModel(LlamaConfig(**_WIDE)),
    "mistral": lambda: MistralModel(MistralConfig(**_WIDE)),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**_GROUPED)),
    "qwen3": lambda: Qwen3Model(Qwen3Config(**_WIDE)),
}
_FAMILIES = {
    **_ENCODERS,
    **_DECODERS,
    "gemma3_text": lambda: Gemma3TextModel(Gemma3TextConfig(**_WIDE, query_pre_attn_scalar=16, sliding_window=8)),
}


def _saved(folder: Path, make: Callable[[], PreTrainedModel]) -> Any:
    model = randomised(make(), spread=0.1)
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def _refusal(folder: Path, **changes: Any) -> str:
    rewrite(folder, **changes)
    with pytest.raises(CheckpointError) as refused:
        load_model(folder, torch.device("cpu"), torch.float32)
    return str(refused.value)


@pytest.mark.parametrize("size", [_VOCAB + 1, _VOCAB - 1])
@pytest.mark.parametrize("family", _FAMILIES)
def test_another_vocabulary_is_refused(tmp_path: Path, family: str, size: int) -> None:
    """Ids are checked against the number in the file: beyond the table they would read foreign memory on a device."""
    _saved(tmp_path, _FAMILIES[family])
    assert f"has shape [{_VOCAB}, 32], expected [{size}, 32]" in _refusal(tmp_path, vocab_size=size)


@pytest.mark.parametrize("family", _FAMILIES)
def test_other_heads_are_refused(tmp_path: Path, family: str) -> None:
    _saved(tmp_path, _FAMILIES[family])
    assert "together" in _refusal(tmp_path, num_attention_heads=6)


@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_another_table_of_positions_is_refused(tmp_path: Path, family: str, change: int) -> None:
    rows = _saved(tmp_path, _FAMILIES[family]).config.max_position_embeddings
    words = f"has shape [{rows}, 32], expected [{rows + change}, 32]"
    assert words in _refusal(tmp_path, max_position_embeddings=rows + change)


@pytest.mark.parametrize("key", ["is_decoder", "is_causal"])
@pytest.mark.parametrize("family", _ENCODERS)
def test_encoders_that_look_back_only_are_refused(tmp_path: Path, family: str, key: str) -> None:
    model = _saved(tmp_path, _ENCODERS[family])
    ids = sequences(LENGTHS["unequal"], _VOCAB)
    for value in (False, None):
        rewrite(tmp_path, **{key: value})
        assert_equals(tmp_path, model, ids)
    assert f"{key} True is not served" in _refusal(tmp_path, **{key: True})
    if key == "is_causal":  # which every encoder of transformers obeys
        looking_back = type(model).from_pretrained(tmp_path).eval()
        row = torch.tensor([ids[3]])
        with torch.inference_mode():
            assert largest_difference(looking_back(row).last_hidden_state, model(row).last_hidden_state) > 1e-3


@pytest.mark.parametrize("family", _DECODERS)
def test_a_null_is_no_switch(tmp_path: Path, family: str) -> None:
    model = _saved(tmp_path, _DECODERS[family])
    rewrite(tmp_path, is_causal=None)
    assert_equals(tmp_path, type(model).from_pretrained(tmp_path).eval(), sequences(LENGTHS["unequal"], _VOCAB))


def test_pooling_of_a_language_model_whose_switch_is_null() -> None:
    def pooling(**values: Any) -> str:
        return default_head(Path("config.json"), {"architectures": ["Qwen2ForCausalLM"], **values}).pooling.value

    assert pooling() == pooling(is_causal=None) == pooling(is_causal=True) == "lasttoken"
    assert pooling(is_causal=False) == "mean"


def test_gemma_knows_one_switch(tmp_path: Path) -> None:
    _saved(tmp_path, _FAMILIES["gemma3_text"])
    assert "is_causal False is not served" in _refusal(tmp_path, is_causal=False)
    rewrite(tmp_path, use_bidirectional_attention=True)  # beside which the other one says nothing new
    assert not load_model(tmp_path, torch.device("cpu"), torch.float32).geometries[0].causal


def test_heads_of_qwen3_have_128_elements_where_the_file_is_silent(tmp_path: Path) -> None:
    model = _saved(tmp_path, lambda: Qwen3Model(Qwen3Config(**_GROUPED)))
    assert model.config.head_dim == 128
    rewrite(tmp_path, "head_dim")
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], _VOCAB))


@pytest.mark.parametrize("inside", [None, 20])
def test_original_positions_at_the_top(tmp_path: Path, inside: int | None) -> None:
    """As transformers reads them, whatever `rope_scaling` says."""
    _saved(tmp_path, _DECODERS["llama"])
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if inside is not None:
        scaling["original_max_position_embeddings"] = inside
    rewrite(tmp_path, "rope_parameters", rope_theta=500.0, rope_scaling=scaling, original_max_position_embeddings=8)
    model = LlamaModel.from_pretrained(tmp_path).eval()
    assert model.config.rope_parameters["original_max_position_embeddings"] == 8
    assert_equals(tmp_path, model, sequences(LENGTHS["unequal"], _VOCAB))


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_embeddings_it_is_said_to_be_tied_to(tmp_path: Path, same: bool) -> None:
    folder = make_qwen_reranker(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    rows = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = rows.clone() if same else rows.flip(0)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    words, pairs = word_tokenizer().get_vocab(), [template_ids(folder, QUERY, document) for document in DOCUMENTS]
    expected = qwen_logits(folder, pairs, yes=words["yes"], no=words["no"])
    assert_close(Scored(folder).logits(QUERY, DOCUMENTS), expected)
