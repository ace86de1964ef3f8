"""A tiny random checkpoint like pplx-embed-context, and what its own rule makes of documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3Model

from tests.support.checkpoints import write_json, write_modules

SEPARATOR = "<|endoftext|>"
WORDS = ("tea", "pot", "stone", "harbour", "wall", "violin", "tractor", "rope", "a", "the", "and")
DIM = 32
LONGEST = 64


def make_contextual(folder: Path, *, contextual: bool = True) -> Qwen3Model:
    """Write the checkpoint, with the files that pplx's have, and return the model, every token seeing every other."""
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=len(WORDS) + 2,
        hidden_size=DIM,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=LONGEST,
        attn_implementation="sdpa",
    )
    config.is_causal = False
    model = Qwen3Model(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))
    model.save_pretrained(folder)
    name = "PPLXQwen3ContextualModel" if contextual else "PPLXQwen3Model"
    values = {
        **config.to_dict(),
        "model_type": "bidirectional_pplx_qwen3",
        "architectures": ["PPLXQwen3Model"],
        "auto_map": {"AutoModel": f"modeling.{name}"},
        "use_bidirectional_attention": True,
    }
    write_json(folder / "config.json", {key: value for key, value in values.items() if key != "is_causal"})
    vocabulary = {word: index for index, word in enumerate((*WORDS, "[UNK]"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([SEPARATOR])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"sep_token": {"content": SEPARATOR}, "model_max_length": LONGEST})
    write_modules(folder, normalize=False)
    entries = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "", "type": "st_quantize.FlexibleQuantizer", "kwargs": ["quantization"]},
    ]
    write_json(folder / "modules.json", entries)
    return model


def contextual_vectors(folder: Path, model: Qwen3Model, documents: Sequence[Sequence[str]]) -> npt.NDArray[np.float32]:
    """`[num_chunks, DIM]`: one document at a time, chunk by chunk, as the card says."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    separator = tokenizer.token_to_id(SEPARATOR)
    rows = []
    for chunks in documents:
        ids = tokenizer.encode(SEPARATOR.join(chunks)).ids
        with torch.inference_mode():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        part: list[torch.Tensor] = []
        for token, vector in [*zip(ids, hidden, strict=True), (separator, hidden[-1])]:
            if token == separator:
                rows.append(torch.stack(part).mean(0) if part else torch.zeros(DIM))
                part = []
            else:
                part.append(vector)
    return torch.stack(rows).numpy()
