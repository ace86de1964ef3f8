"""A tiny random checkpoint like BGE-M3, and what FlagEmbedding's rules make of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaModel

from tests.support.checkpoints import write_json, write_modules
from tests.support.vectors import assert_close

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
WORDS = ("tea", "pot", "stone", "harbour", "wall", "rope")
DIM, MULTI = 32, 24


def make_m3(folder: Path) -> XLMRobertaModel:
    """A tiny random checkpoint with the files of BGE-M3."""
    torch.manual_seed(8)
    config = XLMRobertaConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=26,
        type_vocab_size=1,
    )
    model = XLMRobertaModel(config, add_pooling_layer=False).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    torch.save(torch.nn.Linear(DIM, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(DIM, MULTI).state_dict(), folder / "colbert_linear.pt")
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": 24})
    write_modules(folder, pooling={"pooling_mode": "cls"})
    return model


def flag_embedding(folder: Path, model: XLMRobertaModel, text: str) -> tuple[Any, dict[int, float], Any]:
    """Dense vector, weights by token id, and multi-vectors of one text."""
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    sparse, multi = (torch.load(folder / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert"))
    with torch.inference_mode():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    weights: dict[int, float] = {}
    for token, weight in zip(ids, torch.relu(hidden @ sparse["weight"].T + sparse["bias"])[:, 0].tolist(), strict=True):
        if weight > 0 and token > 3:
            weights[token] = max(weight, weights.get(token, 0.0))
    vectors = torch.nn.functional.normalize(hidden[1:] @ multi["weight"].T + multi["bias"], dim=-1)
    return torch.nn.functional.normalize(hidden[0], dim=0).numpy(), weights, vectors.numpy()


def assert_flag_embedding(made: dict[str, Any], folder: Path, model: XLMRobertaModel, texts: list[str]) -> None:
    """Tensors by name, without the batch dimension, against each text alone."""
    stops = [0, *np.cumsum(made["SPARSE_LENGTHS"])], [0, *np.cumsum(made["TOKEN_EMBEDDING_LENGTHS"])]
    some = 0
    for index, text in enumerate(texts):
        dense, weights, vectors = flag_embedding(folder, model, text)
        assert_close(made["EMBEDDING"][index], dense)
        own = slice(stops[0][index], stops[0][index + 1])
        assert made["SPARSE_INDEX"][own].tolist() == sorted(weights)
        if weights:
            assert_close(made["SPARSE_WEIGHT"][own], [weights[token] for token in sorted(weights)])
        some += len(weights)
        assert_close(made["TOKEN_EMBEDDING"][stops[1][index] : stops[1][index + 1]], vectors)
    assert some > 3
    assert len(made["SPARSE_INDEX"]) == len(made["SPARSE_WEIGHT"]) == some
