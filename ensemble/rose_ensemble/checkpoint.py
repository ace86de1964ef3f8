"""Reading a checkpoint folder by sentence-transformers' own rules: what its files say is what it gets.

Files, in the order they are read: `config.json`, `modules.json` and each module's `config.json`,
`sentence_*_config.json`, `config_sentence_transformers.json`, `tokenizer_config.json`. The rules follow
sentence-transformers 5 and 6 (`SentenceTransformer.__init__`, `models/Pooling`, `models/Transformer`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose_backend.config import HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError
from rose_backend.models.lengths import usable_length

_TRANSFORMER_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
_OLD_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Checkpoint:
    """What a folder says, resolved.

    Attributes:
        folder: where it lies.
        model_type: `config.json`'s.
        vocab_size: token ids are below it.
        head: pooling and normalisation.
        max_length: longest sequence in tokens, special tokens included.
        lower_case: whether texts are lower-cased before tokenization.
        prompts: text to put in front of an input, by name.
        default_prompt_name: the prompt of a request that names none.
    """

    folder: Path
    model_type: str
    vocab_size: int
    head: HeadConfig
    max_length: int
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Resolve a Hugging Face or sentence-transformers folder.

    Raises:
        CheckpointError: a file is missing or malformed, or asks for something that is not served.
    """
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder} is not a folder")
    config = _read_json(folder / "config.json")
    modules = _modules(folder)
    transformer = folder / modules.pop("Transformer", "")
    if transformer != folder and (transformer / "config.json").is_file():
        raise CheckpointError(
            f"{folder / 'modules.json'}: the Transformer module lies in {transformer.name!r}; "
            "only checkpoints whose weights lie at the top of the folder are served"
        )
    st_config = _read_json(folder / "config_sentence_transformers.json", optional=True)
    encoder_path = next((folder / name for name in _TRANSFORMER_CONFIGS if (folder / name).is_file()), None)
    encoder_config = {} if encoder_path is None else _read_json(encoder_path)
    prompts = {str(name): str(text) for name, text in (st_config.get("prompts") or {}).items()}
    default_prompt_name = st_config.get("default_prompt_name")
    if default_prompt_name is not None and default_prompt_name not in prompts:
        raise CheckpointError(
            f"config_sentence_transformers.json: default_prompt_name {default_prompt_name!r} "
            f"is not among its prompts {sorted(prompts)}"
        )
    return Checkpoint(
        folder=folder,
        model_type=str(config.get("model_type")),
        vocab_size=_positive_number(folder / "config.json", config, "vocab_size"),
        head=HeadConfig(
            pooling=_pooling(folder / modules["Pooling"]) if "Pooling" in modules else PoolingMode.MEAN,
            normalize="Normalize" in modules,
        ),
        max_length=_max_length(folder, config, encoder_path),
        lower_case=bool(encoder_config.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=default_prompt_name,
    )


def _modules(folder: Path) -> dict[str, str]:
    """Module kinds and their paths, in order. Without the file: a transformer, mean-pooled, as the library does."""
    path = folder / "modules.json"
    if not path.is_file():
        return {"Transformer": ""}
    entries = _load_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "type" in entry for entry in entries):
        raise CheckpointError(f"{path} holds no list of modules with a type each")
    modules: dict[str, str] = {}
    for entry in entries:
        kind = str(entry["type"]).rsplit(".", 1)[-1]  # old and new releases differ in the package only
        if kind in modules:
            raise CheckpointError(f"{path}: two modules of type {kind}; one is served")
        modules[kind] = str(entry.get("path", ""))
    known = ["Transformer", "Pooling", "Normalize"]
    unknown = [kind for kind in modules if kind not in known]
    if unknown:
        raise CheckpointError(f"{path}: module type {unknown[0]!r} is not served; known: {known}")
    if list(modules) != [kind for kind in known if kind in modules] or "Transformer" not in modules:
        raise CheckpointError(f"{path}: modules {list(modules)} are not in the order {known}")
    return modules


def _pooling(folder: Path) -> PoolingMode:
    path = folder / "config.json"
    config = _read_json(path)
    wanted = config.get("pooling_mode")
    if wanted is None:
        modes = [name for flag, name in _OLD_POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    else:
        modes = [wanted] if isinstance(wanted, str) else list(wanted)
    served = [mode.value for mode in PoolingMode]
    if len(modes) != 1 or modes[0] not in served:
        raise CheckpointError(f"{path}: pooling {modes} is not served; known: one of {served}")
    if not config.get("include_prompt", True):
        raise CheckpointError(f"{path}: include_prompt false is not served")
    return PoolingMode(modes[0])


def _max_length(folder: Path, config: Mapping[str, Any], encoder_path: Path | None) -> int:
    """`max_seq_length` if given, else what tokenizer and positions allow; never more than the positions."""
    limits = [usable_length(config, folder / "config.json")]
    candidates = ((encoder_path, "max_seq_length"), (folder / "tokenizer_config.json", "model_max_length"))
    for path, key in candidates:
        values = {} if path is None else _read_json(path, optional=True)
        if path is not None and values.get(key) is not None:
            limits.append(_positive_number(path, values, key))
            break
    return min(limits)


def _positive_number(path: Path, values: Mapping[str, Any], key: str) -> int:
    """Whole, though transformers writes 1e30 where a tokenizer has no limit."""
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{path}: {key} is {value!r}, not a positive number")
    return int(value)


def _read_json(path: Path, *, optional: bool = False) -> Mapping[str, Any]:
    if optional and not path.is_file():
        return {}
    values = _load_json(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return values


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as cause:
        raise CheckpointError(f"{path} is not valid JSON: {cause}") from cause
