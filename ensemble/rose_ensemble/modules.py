"""`modules.json` and what each module's own file asks for, by sentence-transformers' rules.

Served: a Transformer, then Pooling, any number of Dense, and at the end Normalize or pplx-embed's FlexibleQuantizer or
neither; or a masked language model, then SpladePooling. Everything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rose_backend.config import Activation, DenseConfig, HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint_files import CheckpointFiles, flag, positive_number, refuse_others, refuse_unknown
from rose_ensemble.matryoshka import DECLARING_KEYS
from rose_ensemble.splade import MASKED_TRANSFORMER, SPLADE_POOLING, read_splade

_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_QUANTIZER = "st_quantize.FlexibleQuantizer"  # its rules are in rose_backend/quantize.py; its own code is never run
_SPLADE = ([MASKED_TRANSFORMER, SPLADE_POOLING], ["Transformer", SPLADE_POOLING])
_ORDER = re.compile(f"Transformer Pooling( Dense)*( Normalize| {re.escape(_QUANTIZER)})?")
_OLD_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLING_KEYS = {
    *("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"),
    *_OLD_POOLING_FLAGS,
    *DECLARING_KEYS,
}
_DENSE_KEYS = {
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
    *DECLARING_KEYS,
}
TORCH_ACTIVATIONS = {
    f"torch.nn.{package}{activation.value}": activation
    for activation in Activation
    for package in ("", "modules.linear." if activation is Activation.IDENTITY else "modules.activation.")
}
"""By the dotted paths that files name them with."""
_VECTOR = ("sentence_embedding", None)


@dataclass(frozen=True)
class Modules:
    """The modules of a checkpoint.

    Attributes:
        transformer: folder of the weights, `config.json` and tokenizer.
        head: what follows the transformer; None where no file says: then the architecture decides.
        declarations: what the modules' own files hold, with the file each is from.
    """

    transformer: Path
    head: HeadConfig | None
    declarations: tuple[tuple[Path, Mapping[str, Any]], ...] = ()


def read_modules(files: CheckpointFiles, folder: Path) -> Modules:
    """Read `modules.json`, if there is one, and the modules' files.

    Raises:
        CheckpointError: a file is malformed, or a module or option is not served; names it.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return Modules(folder, None)
    modules = module_places(files, folder)
    kinds = [kind for kind, _ in modules]
    if kinds in _SPLADE:
        (_, transformer), (_, pooling_folder) = modules
        splade = read_splade(files, transformer, pooling_folder)
        return Modules(transformer, HeadConfig(PoolingMode.MAX, normalize=False, splade=splade))
    unknown = [kind for kind in kinds if kind not in (*_KINDS, _QUANTIZER)]
    if unknown:
        raise CheckpointError(f"{path}: module type {unknown[0]!r} is not served; known: {[*_KINDS, _QUANTIZER]}")
    if not _ORDER.fullmatch(" ".join(kinds)):
        raise CheckpointError(
            f"{path}: modules {kinds} are not served; expected Transformer, Pooling, any number of Dense, "
            f"and at the end Normalize, {_QUANTIZER} or nothing"
        )
    quantizes = kinds[-1] == _QUANTIZER
    if quantizes:
        modules, kinds = modules[:-1], kinds[:-1]  # it has no file of its own
    declarations = []
    for kind, place in modules[1:]:
        file = place / "config.json"
        declarations.append((file, files.mapping(file, optional=kind == "Normalize")))
    pooling, *dense = [item for item, kind in zip(declarations, kinds[1:], strict=True) if kind != "Normalize"]
    if kinds[-1] == "Normalize":
        _check_normalize(*declarations[-1])
    modes, include_prompt = _pooling(*pooling)
    head = HeadConfig(
        pooling=modes[0],
        normalize=kinds[-1] == "Normalize",
        also=modes[1:],
        include_prompt=include_prompt,
        dense=tuple(_dense(*item) for item in dense),
        tanh_codes=quantizes,
    )
    return Modules(modules[0][1], head, tuple(declarations))


def module_places(files: CheckpointFiles, folder: Path) -> list[tuple[str, Path]]:
    """The kind and folder of every module that `modules.json` names.

    Raises:
        CheckpointError: the file is malformed.
    """
    path = folder / "modules.json"
    return [_module(path, entry) for entry in files.entries(path)]


def default_head(path: Path, config: Mapping[str, Any]) -> HeadConfig:
    """The head of a checkpoint without `modules.json`: the mean, or the last token of a causal language model.

    Raises:
        CheckpointError: its `config.json` names a way of pooling, as llama-nemotron-embed's do, that is not the mean.
    """
    refuse_others(path, config, "pooling", ("avg", None))
    architectures = config.get("architectures") or [""]
    causal = str(architectures[0]).endswith("ForCausalLM") and config.get("is_causal") is not False
    return HeadConfig(PoolingMode.LAST if causal else PoolingMode.MEAN, normalize=False)


def _module(path: Path, entry: Mapping[str, Any]) -> tuple[str, Path]:
    """A module's kind and folder."""
    kind = str(entry["type"])
    if kind != _QUANTIZER:
        kind = kind.rsplit(".", 1)[-1]  # old and new releases differ in the package only
    place = PurePosixPath(str(entry.get("path", "")))
    if place.is_absolute() or ".." in place.parts:
        raise CheckpointError(f"{path}: path {str(place)!r} of module {kind!r} lies outside the folder")
    arguments = ["quantization"] if kind == _QUANTIZER else []  # which of its forms; a request says so itself
    if entry.get("kwargs") not in (None, [], arguments):
        raise CheckpointError(f"{path}: kwargs {entry['kwargs']!r} of module {kind!r} are not served")
    return kind, path.parent / place


def _pooling(path: Path, config: Mapping[str, Any]) -> tuple[tuple[PoolingMode, ...], bool]:
    """The ways of pooling, and whether the tokens of a prompt are pooled."""
    refuse_unknown(path, config, _POOLING_KEYS)
    wanted: Any
    if "pooling_mode" in config:
        wanted = config["pooling_mode"]
        wanted = [wanted] if isinstance(wanted, str) else wanted
    else:
        flags = _OLD_POOLING_FLAGS.items()
        wanted = [mode for key, mode in flags if flag(path, config, key, default=False)] or ["mean"]
    served = [mode.value for mode in PoolingMode]
    if not isinstance(wanted, list) or not wanted or not all(mode in served for mode in wanted):
        raise CheckpointError(f"{path}: pooling {wanted!r} is not served; known: {served}")
    if len(set(wanted)) < len(wanted):
        raise CheckpointError(f"{path}: pooling {wanted!r} names a mode twice, which is not served")
    return tuple(PoolingMode(mode) for mode in wanted), flag(path, config, "include_prompt", default=True)


def _dense(path: Path, config: Mapping[str, Any]) -> DenseConfig:
    refuse_unknown(path, config, _DENSE_KEYS)
    _refuse_other_tensors(path, config)
    # The library takes Tanh where the key is missing.
    named = config.get("activation_function", "torch.nn.Tanh")
    activation = TORCH_ACTIVATIONS.get(named) if isinstance(named, str) else None
    if activation is None:
        raise CheckpointError(
            f"{path}: activation_function {named!r} is not served; known in torch.nn: {[a.value for a in Activation]}"
        )
    return DenseConfig(
        folder=path.parent,
        in_features=positive_number(path, config, "in_features"),
        out_features=positive_number(path, config, "out_features"),
        bias=flag(path, config, "bias", default=True),
        activation=activation,
        residual=flag(path, config, "use_residual", default=False),
    )


def _check_normalize(path: Path, config: Mapping[str, Any]) -> None:
    refuse_unknown(path, config, ("module_input_name", "module_output_name"))
    _refuse_other_tensors(path, config)


def _refuse_other_tensors(path: Path, config: Mapping[str, Any]) -> None:
    """A module may work on something else than the pooled vector; that is not served."""
    refuse_others(path, config, "module_input_name", _VECTOR[:1])
    refuse_others(path, config, "module_output_name", _VECTOR)
