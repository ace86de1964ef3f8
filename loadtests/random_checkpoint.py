"""Full-size checkpoints with random weights: the public architectures, for measuring speed where no weights are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def write_qwen3(folder: Path, *, causal: bool = True, tokenizer: Path | None = None, **changes: Any) -> Path:
    """Write a Qwen3 checkpoint in bfloat16, drawn on the GPU if there is one; returns the folder.

    Args:
        folder: created if missing.
        causal: whether tokens see only earlier ones.
        tokenizer: a `tokenizer.json`; without one, a vocabulary in name only, for engines that will not start
            without, and which are sent ids.
        changes: other values for `config.json`, e.g. fewer layers.
    """
    config = {**QWEN3_0_6B, "is_causal": causal, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, tokenizer, 32768)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, around: float = 0.0) -> torch.Tensor:
        noise = torch.randn(*shape, generator=generator, device=device) * (0.02 if around == 0 else 0.1)
        return (noise + around).to(torch.bfloat16).cpu()

    hidden, wide, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    weights = {
        "model.embed_tokens.weight": drawn(config["vocab_size"], hidden),
        "model.norm.weight": drawn(hidden, around=1.0),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": drawn(hidden, around=1.0),
            prefix + "self_attn.q_proj.weight": drawn(queries, hidden),
            prefix + "self_attn.k_proj.weight": drawn(keys, hidden),
            prefix + "self_attn.v_proj.weight": drawn(keys, hidden),
            prefix + "self_attn.q_norm.weight": drawn(head, around=1.0),
            prefix + "self_attn.k_norm.weight": drawn(head, around=1.0),
            prefix + "self_attn.o_proj.weight": drawn(hidden, queries),
            prefix + "post_attention_layernorm.weight": drawn(hidden, around=1.0),
            prefix + "mlp.gate_proj.weight": drawn(wide, hidden),
            prefix + "mlp.up_proj.weight": drawn(wide, hidden),
            prefix + "mlp.down_proj.weight": drawn(hidden, wide),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write_tokenizer(folder: Path, tokenizer: Path | None, max_length: int) -> None:
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**about, "model_max_length": max_length}))
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
        return
    words = {word: index for index, word in enumerate(("<|endoftext|>", "<|im_end|>", "a", "no", "yes"))}
    Tokenizer(models.WordLevel(words, unk_token="a")).save(str(folder / "tokenizer.json"))


def write_qwen3_embedding(folder: Path, tokenizer: Path) -> Path:
    """Qwen3-Embedding-0.6B's geometry, random weights, last token pooled, the real vocabulary; returns the folder."""
    write_qwen3(folder, causal=True, tokenizer=tokenizer)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
                for index, (path, kind) in enumerate(modules)
            ]
        )
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 1024, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8192, "do_lower_case": False}))
    return folder


MINILM_L6: dict[str, Any] = {
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 151936,  # of the tokenizer that is at hand; a look-up costs the same
}
BGE_BASE: dict[str, Any] = {
    **MINILM_L6,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
}


def write_bert(folder: Path, config: dict[str, Any], *, tokenizer: Path | None = None) -> Path:
    """Write a BERT checkpoint in float32; returns the folder. `tokenizer` as for `write_qwen3`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, tokenizer, config["max_position_embeddings"])
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int, around: float = 0.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * (0.02 if around == 0 else 0.1) + around

    hidden, wide = config["hidden_size"], config["intermediate_size"]
    weights: dict[str, torch.Tensor] = {}

    def dense(name: str, out: int, into: int) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = drawn(out, into), drawn(out)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = drawn(hidden, around=1.0), drawn(hidden)

    rows = {"word": config["vocab_size"], "position": config["max_position_embeddings"], "token_type": 2}
    for kind, count in rows.items():
        weights[f"embeddings.{kind}_embeddings.weight"] = drawn(count, hidden)
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            dense(f"{prefix}attention.self.{part}", hidden, hidden)
        dense(f"{prefix}attention.output.dense", hidden, hidden)
        norm(f"{prefix}attention.output.LayerNorm")
        dense(f"{prefix}intermediate.dense", wide, hidden)
        dense(f"{prefix}output.dense", hidden, wide)
        norm(f"{prefix}output.LayerNorm")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
