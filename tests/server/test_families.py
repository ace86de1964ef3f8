"""A small checkpoint of every architecture, loaded from disk by one `rose serve`, against sentence-transformers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
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
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from rose_client import RoseClient
from tests.support.cases import HARBOUR
from tests.support.checkpoints import write_json
from tests.support.library import alone, edit_json, library
from tests.support.serving import Serving, serving
from tests.support.splade import make_splade, splade_library
from tests.support.vectors import assert_close

pytestmark = pytest.mark.slow

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_WORDS = ("tea", "pot", "stone", "harbour", "wall", "violin", "tractor", "rope")
_LIMIT, _HIDDEN = 24, 32
_WINDOW = {"modernbert": 8, "gemma3": 8}  # four tokens on either side
_SHAPE = {
    "vocab_size": len(_SPECIAL) + len(_WORDS),
    "hidden_size": _HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": _LIMIT,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_DECODER = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 16}
_MODERN = {**_SHAPE, "num_hidden_layers": 4, "local_attention": _WINDOW["modernbert"], "cls_token_id": 0}
_GEMMA = {**_DECODER, "num_hidden_layers": 7, "sliding_window": _WINDOW["gemma3"], "query_pre_attn_scalar": 24}


@dataclass(frozen=True)
class _Family:
    """One checkpoint. `sees_all`: its tokens see each other, which the stock class knows by another key only."""

    make: Callable[[], PreTrainedModel]
    pooling: str
    normalize: bool = True
    sees_all: bool = False
    dense: tuple[int, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


_FAMILIES = {
    "bert": _Family(lambda: BertModel(BertConfig(**_SHAPE), add_pooling_layer=False), "mean"),
    "xlm-roberta": _Family(
        lambda: XLMRobertaModel(
            XLMRobertaConfig(**{**_SHAPE, "max_position_embeddings": _LIMIT + 2, "type_vocab_size": 1}),
            add_pooling_layer=False,
        ),
        "cls",
    ),
    "modernbert": _Family(lambda: ModernBertModel(ModernBertConfig(**_MODERN, sep_token_id=2)), "cls"),
    "nomic_bert": _Family(lambda: NomicBertModel(NomicBertConfig(**_SHAPE)), "mean", normalize=False),
    "qwen2": _Family(lambda: Qwen2Model(Qwen2Config(**_DECODER)), "lasttoken"),
    "qwen3": _Family(lambda: Qwen3Model(Qwen3Config(**_DECODER)), "lasttoken"),
    "qwen3-bidirectional": _Family(
        lambda: Qwen3Model(Qwen3Config(**_DECODER)),
        "mean",
        normalize=False,
        sees_all=True,
        config={"model_type": "bidirectional_pplx_qwen3", "use_bidirectional_attention": True},
    ),
    "llama-bidirectional": _Family(
        lambda: LlamaModel(LlamaConfig(**_DECODER)), "mean", sees_all=True, config={"model_type": "llama_bidirec"}
    ),
    "mistral": _Family(lambda: MistralModel(MistralConfig(**_DECODER, sliding_window=None)), "lasttoken"),
    "gemma3": _Family(
        lambda: Gemma3TextModel(Gemma3TextConfig(**_GEMMA, use_bidirectional_attention=True)), "mean", dense=(64, 40)
    ),
}


def _draw(parameters: Iterator[tuple[str, torch.nn.Parameter]], centre: float) -> None:
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in parameters:
            is_scale = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(centre if is_scale else 0.0, 0.2)


def _write_tokenizer(folder: Path, *, decoder: bool) -> None:
    """A token a word; encoders have one before and one after, decoders one after."""
    words = {word: index for index, word in enumerate((*_SPECIAL, *_WORDS))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    template = "$A </s>" if decoder else "<s> $A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    inputs = ["input_ids", "attention_mask"]
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "model_input_names": inputs}
    write_json(folder / "tokenizer_config.json", {**values, "model_max_length": _LIMIT})


def _save(folder: Path, family: _Family) -> Path:
    """Written by the library, but for the tokenizer: it would put its own of the family in the place of this one."""
    bare, saved = folder / "bare", folder / "saved"
    model = family.make().float().eval()
    _draw(model.named_parameters(), 0.0 if isinstance(model, Gemma3TextModel) else 1.0)  # Gemma adds one to its own
    model.save_pretrained(bare)
    decoder = "num_key_value_heads" in model.config.to_dict()
    _write_tokenizer(bare, decoder=decoder)
    widths = (_HIDDEN, *family.dense)
    dense = [
        Dense(into, out, bias=False, activation_function=torch.nn.Identity())
        for into, out in itertools.pairwise(widths)
    ]
    for module in dense:
        _draw(module.named_parameters(), 0.0)
    parts = [Transformer(str(bare)), Pooling(_HIDDEN, family.pooling), *dense, *[Normalize()] * family.normalize]
    SentenceTransformer(modules=parts, device="cpu").save(str(saved), create_model_card=False)
    _write_tokenizer(saved, decoder=decoder)
    return saved


def _oracle(folder: Path, family: _Family) -> SentenceTransformer:
    model = library(folder)
    model[0].processor = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>", model_max_length=_LIMIT
    )
    if family.sees_all:
        model[0].auto_model.config.is_causal = False
    return model


def _texts() -> list[str]:
    """Of no word, one, as many as reach the windows' edges and the limit, and of too many."""
    counts = (0, 1, 2, 3, 4, 5, 6, 7, _LIMIT - 3, _LIMIT - 2, _LIMIT - 1, _LIMIT, 3 * _LIMIT)
    return [" ".join(_WORDS[(index * index + count) % len(_WORDS)] for index in range(count)) for count in counts]


@pytest.fixture(scope="module")
def right() -> dict[str, npt.NDArray[np.float32]]:
    """Filled while checkpoints are written."""
    return {}


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    return make_splade(tmp_path_factory.mktemp("splade"), minilm)


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, right: dict[str, npt.NDArray[np.float32]], splade: Path
) -> Iterator[Serving]:
    options = ["--tokenizers=1", "--token-budget=64", "--probe-interval=600"]
    for name, family in _FAMILIES.items():
        folder = _save(tmp_path_factory.mktemp(name), family)
        right[name] = alone(_oracle(folder, family), _texts())
        if family.config:
            edit_json(folder / "config.json", **family.config)
        options += [f"--checkpoint={folder}", f"--name={name}"]
    options += [f"--checkpoint={splade}", "--name=splade"]
    with serving(tmp_path_factory.mktemp("serve"), *options) as found:
        yield found


@pytest.mark.parametrize("name", _FAMILIES)
def test_equals_the_library(served: Serving, right: dict[str, npt.NDArray[np.float32]], name: str) -> None:
    with RoseClient(served.grpc, model=name) as client:
        answer = client.embed_with_counts(_texts())
        assert_close(answer.vectors, right[name])
        assert answer.token_counts.max() == _LIMIT
        assert_close(np.concatenate([client.embed([text]) for text in _texts()]), right[name])


@pytest.mark.parametrize("name", _FAMILIES)
def test_the_librarys_vectors_differ(served: Serving, right: dict[str, npt.NDArray[np.float32]], name: str) -> None:
    """So that being equal to them says something; the last two texts are cut, and so is what they differ in."""
    vectors = right[name][:-1]
    distances = np.abs(vectors[:, None] - vectors).max(2) + np.eye(len(vectors))
    assert distances.min() > 1e-3


def test_splade(served: Serving, splade: Path) -> None:
    texts = [HARBOUR, "tea", "", "stone " * 60]
    model = splade_library(splade)
    right = [model.encode(text, convert_to_sparse_tensor=False, show_progress_bar=False).numpy() for text in texts]
    with RoseClient(served.grpc, model="splade") as client:
        answer = client.embed_with_counts(texts, outputs=["float", "sparse"])
    assert_close(answer.vectors, np.stack(right))
    for sparse, row in zip(answer.sparse, right, strict=True):
        made = np.zeros_like(row)
        made[sparse.index] = sparse.weight
        assert_close(made, row)
