"""What the Transformer module's own files say: the longest sequence, and lower-casing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose_backend.errors import CheckpointError
from rose_backend.models.lengths import usable_length
from rose_ensemble.checkpoint_files import CheckpointFiles, flag, positive_number, refuse_others, refuse_unknown

_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

# Arguments of transformers' `from_pretrained` that leave the vectors as they are, under their old names and the new.
_HARMLESS = {
    "model_args": {"attn_implementation", "dtype", "torch_dtype", "trust_remote_code", "use_safetensors"},
    "tokenizer_args": {"model_max_length", "padding_side", "trust_remote_code", "use_fast"},
    "config_args": {"trust_remote_code"},
}
_NEW_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
_SERVED: Mapping[str, tuple[Any, ...]] = {
    "processing_kwargs": ({}, None),
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None, False),
    "tokenizer_name_or_path": (None,),
}
_KEYS = {
    "max_seq_length",
    "do_lower_case",
    "modality_config",
    "module_output_name",
    "transformer_task",
    "unpad_inputs",
    *_SERVED,
    *_HARMLESS,
    *_NEW_NAMES.values(),
}
EMBEDDING_TASK, MASKED_TASK = "feature-extraction", "fill-mask"
_TASKS = {
    EMBEDDING_TASK: ("token_embeddings", "last_hidden_state"),
    "sequence-classification": ("scores", "logits"),
    MASKED_TASK: ("token_embeddings", "logits"),
    "text-generation": ("causal_logits", "logits"),
}
"""What each task's output is called, among modules and by transformers."""


@dataclass(frozen=True)
class Encoder:
    """How texts become sequences.

    Attributes:
        max_length: longest sequence in tokens, special tokens included.
        lower_case: whether texts are lower-cased before tokenization.
    """

    max_length: int
    lower_case: bool


def read_encoder(
    files: CheckpointFiles, folder: Path, config: Mapping[str, Any], task: str = EMBEDDING_TASK
) -> Encoder:
    """Read `sentence_*_config.json`, if there is one, and what it leaves open.

    Args:
        files: reads them.
        folder: of the Transformer module.
        config: its `config.json`.
        task: what the file must say it is for, where it says so.

    Raises:
        CheckpointError: a file is malformed, or asks for something that is not served.
    """
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    positions = usable_length(config, folder / "config.json")
    if path is None:
        return Encoder(min((positions, *_tokenizer_limit(files, folder))), lower_case=False)
    values = files.mapping(path)
    refuse_unknown(path, values, _KEYS)
    output, method_output = _TASKS[task]
    text = {"method": "forward", "method_output_name": method_output}
    for key, served in {**_SERVED, "transformer_task": (task,), "module_output_name": (output,)}.items():
        refuse_others(path, values, key, served)
    modalities = values.get("modality_config", {"text": text})
    if not isinstance(modalities, dict) or modalities.get("text") != text:
        raise CheckpointError(f"{path}: modality_config {modalities!r} is not served; its 'text' must be {text}")
    arguments = {name: _arguments(path, values, name) for name in _HARMLESS}
    lower_case = flag(path, values, "do_lower_case", default=False)
    limit: tuple[int, ...]
    if "model_max_length" in arguments["tokenizer_args"]:
        limit = (positive_number(path, arguments["tokenizer_args"], "model_max_length"),)
    elif values.get("max_seq_length") is not None:
        limit = (positive_number(path, values, "max_seq_length"),)
    else:
        limit = _tokenizer_limit(files, folder)
    return Encoder(min((positions, *limit)), lower_case)


def _tokenizer_limit(files: CheckpointFiles, folder: Path) -> tuple[int, ...]:
    path = folder / "tokenizer_config.json"
    values = files.mapping(path, optional=True)
    return () if values.get("model_max_length") is None else (positive_number(path, values, "model_max_length"),)


def _arguments(path: Path, values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for spelling in (name, _NEW_NAMES[name]):
        given = values.get(spelling) or {}
        if not isinstance(given, dict):
            raise CheckpointError(f"{path}: {spelling} is {given!r}, not arguments by name")
        found |= given
    for key in found:
        if key not in _HARMLESS[name]:
            raise CheckpointError(f"{path}: {name} {key!r} is not served; known: {sorted(_HARMLESS[name])}")
    return found
