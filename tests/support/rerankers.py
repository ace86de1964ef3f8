"""Small random rerankers, every parameter drawn, with a tokenizer each; and their right logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import CrossEncoder
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from tests.support.cases import VOCAB_SIZE
from tests.support.checkpoints import SHAPE, copy_tokenizer, write_json

QUERY = "boats in port"
DOCUMENTS = [
    "Ships rest in the harbour.",
    "Bread needs yeast.",
    "A kettle boils water.",
    "Bread needs yeast.",
    "",
    "stone " * 60,
    "[CLS] tea [SEP] pot",
]
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_ONE = {"num_labels": 1}


def drawn(model: PreTrainedModel, seed: int = 5) -> PreTrainedModel:
    """Every parameter random; norms around one, so that signals get through."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.normal_(centre, 0.2, generator=generator)
    return model.float().eval()


def make_bert_reranker(folder: Path, minilm: Path, **changes: Any) -> Path:
    """With MiniLM's tokenizer; 24 positions unless told otherwise."""
    values = {**SHAPE, "vocab_size": VOCAB_SIZE, **_ONE, **changes}
    drawn(BertForSequenceClassification(BertConfig(**values))).save_pretrained(folder)
    copy_tokenizer(minilm, folder)
    return folder


def make_modernbert_reranker(folder: Path, minilm: Path, **changes: Any) -> Path:
    """With MiniLM's tokenizer, whose token types it ignores."""
    values = {**_SMALL, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 24, "local_attention": 8, **_ONE}
    values |= {"num_hidden_layers": 4, "pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102}
    config = ModernBertConfig(**{**values, "bos_token_id": 101, "eos_token_id": 102, **changes})
    drawn(ModernBertForSequenceClassification(config)).save_pretrained(folder)
    copy_tokenizer(minilm, folder)
    _write_tokenizer_config(folder, pad="[PAD]", cls="[CLS]", sep="[SEP]", unk="[UNK]", mask="[MASK]")
    return folder


def make_roberta_reranker(folder: Path, *, multilingual: bool = False) -> Path:
    """With a few words; `<s> a </s></s> b </s>`. The model has 22 usable positions."""
    words = sorted({word for text in (QUERY, *DOCUMENTS) for word in text.replace(".", " .").split()})
    vocabulary = {word: index for index, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}
    values = {**_SMALL, "vocab_size": len(vocabulary), "max_position_embeddings": 24, "type_vocab_size": 1, **_ONE}
    values |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if multilingual:
        model = drawn(XLMRobertaForSequenceClassification(XLMRobertaConfig(**values)))
    else:
        model = drawn(RobertaForSequenceClassification(RobertaConfig(**values)))
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "<pad>", "</s>", "<unk>")])
    special = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=special
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    # 22 of its 24 positions are usable; the library would look up beyond them.
    _write_tokenizer_config(folder, 22, pad="<pad>", bos="<s>", eos="</s>", cls="<s>", sep="</s>", unk="<unk>")
    return folder


def make_qwen_reranker(
    folder: Path, *, classifier: bool = False, tied: bool = True, tokenizer: Tokenizer | None = None, limit: int = 120
) -> Path:
    """A causal Qwen3, or the same with one row of scores; with a tokenizer of its template's words by default."""
    tokenizer = tokenizer or word_tokenizer()
    config = Qwen3Config(
        **_SMALL,
        vocab_size=tokenizer.get_vocab_size(),
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=limit,
        tie_word_embeddings=tied,
        pad_token_id=0,
        **(_ONE if classifier else {}),
    )
    kind = Qwen3ForSequenceClassification if classifier else Qwen3ForCausalLM
    drawn(kind(config)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_tokenizer_config(folder, pad="<|endoftext|>")
    return folder


def word_tokenizer() -> Tokenizer:
    """Words of Qwen3-Reranker's template and of the texts here; it puts nothing around a text."""
    pieces = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Whitespace()])
    texts = (PREFIX, SUFFIX, TASK, QUERY, *DOCUMENTS, "<Instruct>: <Query>: <Document>: Find recipes")
    words = sorted({piece for text in texts for piece, _ in pieces.pre_tokenize_str(text)} | {"\n"})
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    vocabulary = {word: index for index, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.pre_tokenizer = pieces
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special[:3]])
    return tokenizer


def template_ids(folder: Path, query: str, document: str, task: str = TASK, limit: int = 120) -> list[int]:
    """One sequence by the recipe of Qwen3-Reranker's card."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prefix, suffix, body = (
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in (PREFIX, SUFFIX, f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}")
    )
    return [*prefix, *body[: limit - len(prefix) - len(suffix)], *suffix]


def qwen_logits(folder: Path, rows: Sequence[Sequence[int]], *, yes: int, no: int) -> npt.NDArray[np.float32]:
    """By the whole language-model head, in float32: the logit of "yes" less that of "no" at the last token."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.inference_mode():
        for row in rows:
            logits = model(torch.tensor([list(row)])).logits[0, -1]
            found.append(float(logits[yes] - logits[no]))
    return np.array(found, np.float32)


def library_logits(folder: Path, query: str, documents: Sequence[str]) -> npt.NDArray[np.float32]:
    """sentence-transformers' logits, no pair sharing a batch with another."""
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    identity = torch.nn.Identity()
    pairs = [[(query, document)] for document in documents]
    return np.concatenate([model.predict(one, activation_fn=identity, show_progress_bar=False) for one in pairs])


def library_scores(folder: Path, query: str, documents: Sequence[str]) -> npt.NDArray[np.float32]:
    """sentence-transformers' scores, activated as the files say."""
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    pairs = [[(query, document)] for document in documents]
    return np.concatenate([model.predict(one, show_progress_bar=False) for one in pairs])


def edit_tokenizer(folder: Path, **values: Any) -> None:
    """Change keys of `tokenizer.json`."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _write_tokenizer_config(folder: Path, limit: int | None = None, **tokens: str) -> None:
    names: dict[str, Any] = {f"{name}_token": text for name, text in tokens.items()}
    inputs = ["input_ids", "attention_mask"]
    if limit is not None:
        names["model_max_length"] = limit
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **names}
    write_json(folder / "tokenizer_config.json", values)
