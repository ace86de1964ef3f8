"""Reading a checkpoint folder by sentence-transformers' own rules: what its files say is what it gets.

Files: `modules.json` and each module's `config.json`; in the Transformer module's folder `config.json`,
`sentence_*_config.json` and `tokenizer_config.json`; `config_sentence_transformers.json`; our own
`rose_int8_ranges.json`. The rules follow
sentence-transformers 5 and 6 (`SentenceTransformer.__init__`, `models/Pooling`, `models/Transformer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rose_backend.config import HeadConfig
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint_files import CheckpointFiles, positive_number, refuse_others, refuse_unknown
from rose_ensemble.encoder import EMBEDDING_TASK, MASKED_TASK, read_encoder
from rose_ensemble.int8_ranges import read_ranges
from rose_ensemble.matryoshka import DECLARING_KEYS, Matryoshka, family_sizes, read_matryoshka
from rose_ensemble.modules import default_head, read_modules
from rose_ensemble.scoring import Scoring, read_scoring, scores_pairs, task_of, transformer_folder
from rose_ensemble.token_heads import read_token_heads

_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_ST_KEYS = {
    *("__version__", "model_type", "requirements"),
    *("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"),
    *DECLARING_KEYS,
}
_CROSS_ENCODER_KEYS = {"activation_fn", "keep_in_fp32_modules"}

_CONTEXTUAL_CLASS = "PPLXQwen3ContextualModel"
_SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Checkpoint:
    """What a folder says, resolved.

    Attributes:
        folder: where weights, `config.json` and tokenizer lie: the Transformer module's folder.
        model_type: `config.json`'s.
        vocab_size: token ids are below it.
        head: pooling, projections and normalisation.
        max_length: longest sequence in tokens, special tokens included.
        matryoshka: width of a vector, and what it may be cut to.
        lower_case: whether texts are lower-cased before tokenization.
        prompts: text to put in front of an input, by name.
        default_prompt_name: the prompt of a request that names none.
        similarity: the function vectors are meant to be compared with.
        stored_dtype: what `config.json` says the weights are stored in, if it does.
        separator: what stands between the chunks of a document, of a contextual checkpoint; else None.
        files: every file that was read.
        scoring: how pairs are scored; None: it is no reranker.
    """

    folder: Path
    model_type: str
    vocab_size: int
    head: HeadConfig
    max_length: int
    matryoshka: Matryoshka
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    stored_dtype: str | None = None
    separator: str | None = None
    files: tuple[Path, ...] = ()
    scoring: Scoring | None = None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Resolve a Hugging Face or sentence-transformers folder.

    Raises:
        CheckpointError: a file is missing or malformed, or asks for something that is not served.
    """
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder} is not a folder")
    files = CheckpointFiles()
    if scores_pairs(folder):
        return _read_reranker(files, folder)
    modules = read_modules(files, folder)
    config_path = modules.transformer / "config.json"
    config = files.mapping(config_path)
    head = modules.head or default_head(config_path, config)
    splade = head.splade is not None
    encoder = read_encoder(files, modules.transformer, config, MASKED_TASK if splade else EMBEDDING_TASK)
    st_path = folder / "config_sentence_transformers.json"
    st_config = files.mapping(st_path, optional=True)
    refuse_unknown(st_path, st_config, _ST_KEYS)
    refuse_others(st_path, st_config, "model_type", ("SparseEncoder" if splade else "SentenceTransformer",))
    refuse_others(st_path, st_config, "similarity_fn_name", (*_SIMILARITIES, None))
    prompts, default_prompt_name = _prompts(st_path, st_config)
    width = "hidden_size" if "hidden_size" in config else "n_embd"  # NomicBERT keeps the old name
    vocab_size = positive_number(config_path, config, "vocab_size")
    dim = vocab_size if splade else head.dim(positive_number(config_path, config, width))
    matryoshka = read_matryoshka(
        dim,
        [(config_path, config), (st_path, st_config), *modules.declarations],
        (st_path, st_config.get("truncate_dim")),
        family_sizes(config, head, prompts, dim),
    )
    return Checkpoint(
        folder=modules.transformer,
        model_type=str(config.get("model_type")),
        vocab_size=vocab_size,
        head=replace(head, ranges=read_ranges(files, folder, dim), tokens=read_token_heads(files, modules.transformer)),
        max_length=encoder.max_length,
        matryoshka=matryoshka,
        lower_case=encoder.lower_case,
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        similarity=st_config.get("similarity_fn_name") or ("dot" if splade else "cosine"),
        stored_dtype=config.get("dtype") or config.get("torch_dtype"),
        separator=_separator(files, modules.transformer, config),
        files=tuple(files.read),
    )


def _read_reranker(files: CheckpointFiles, folder: Path) -> Checkpoint:
    config_path = transformer_folder(files, folder) / "config.json"
    config = files.mapping(config_path)
    encoder = read_encoder(files, config_path.parent, config, task_of(config))
    st_path = folder / "config_sentence_transformers.json"
    st_config = files.mapping(st_path, optional=True)
    refuse_unknown(st_path, st_config, _ST_KEYS | _CROSS_ENCODER_KEYS)
    prompts, default_prompt_name = _prompts(st_path, st_config)
    default_prompt = "" if default_prompt_name is None else prompts[default_prompt_name]
    scoring = read_scoring(files, folder, (config_path, config), (st_path, st_config), default_prompt)
    return Checkpoint(
        folder=config_path.parent,
        model_type=str(config.get("model_type")),
        vocab_size=positive_number(config_path, config, "vocab_size"),
        head=HeadConfig(scoring.config.pooling, normalize=False),
        max_length=encoder.max_length,
        matryoshka=Matryoshka(1),
        lower_case=encoder.lower_case,
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        stored_dtype=config.get("dtype") or config.get("torch_dtype"),
        files=tuple(files.read),
        scoring=scoring,
    )


def _separator(files: CheckpointFiles, folder: Path, config: Mapping[str, Any]) -> str | None:
    """The tokenizer's `sep_token`, where the class is pplx-embed-context's; nothing else tells it from pplx-embed."""
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict) or not str(auto_map.get("AutoModel")).endswith(_CONTEXTUAL_CLASS):
        return None
    path = folder / "tokenizer_config.json"
    token = files.mapping(path, optional=True).get("sep_token", _SEPARATOR)
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str) or not text:
        raise CheckpointError(f"{path}: sep_token {token!r} is no token to stand between chunks")
    return text


def _prompts(path: Path, values: Mapping[str, Any]) -> tuple[Mapping[str, str], str | None]:
    """Prompts by name, and the default one's name; a prompt that is null is empty."""
    stored = values.get("prompts") or {}
    if not isinstance(stored, dict) or not all(text is None or isinstance(text, str) for text in stored.values()):
        raise CheckpointError(f"{path}: prompts {stored!r} are not texts by name")
    prompts = {name: text or "" for name, text in stored.items()}
    default = values.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise CheckpointError(f"{path}: default_prompt_name {default!r} is not among its prompts {sorted(prompts)}")
    return prompts, default
