"""How short a checkpoint's vectors may be cut: what its files say, what is known of its family, or what it is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose_backend.config import HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError, InvalidArgumentError

_LISTS = ("matryoshka_dims", "matryoshka_dimensions")
_ANY = "is_matryoshka"
DECLARING_KEYS = (*_LISTS, _ANY)
"""Keys that say it, in any of a checkpoint's files."""

_SETTING = re.compile(r"auto|off|any|[0-9]+(,[0-9]+)*")
Sizes = tuple[int, ...] | range


@dataclass(frozen=True)
class Matryoshka:
    """The lengths a checkpoint's vectors may be cut to.

    Attributes:
        dim: of a whole vector.
        sizes: others that may be asked for.
        default: where a request asks for none; 0: whole.
        origin: who says so, for people.
    """

    dim: int
    sizes: Sizes = ()
    default: int = 0
    origin: str = ""

    def wanted(self, dimensions: int | None) -> int:
        """The leading elements that a request gets; 0: all.

        Raises:
            InvalidArgumentError: the checkpoint is not trained for so many; says for how many it is.
        """
        if dimensions is None:
            return self.default
        if dimensions == self.dim:
            return 0
        if dimensions in self.sizes:
            return dimensions
        if not self.sizes:
            raise InvalidArgumentError(
                f"parameter 'dimensions' is {dimensions}: vectors of this checkpoint are not trained to be cut; "
                f"they have {self.dim} elements"
            )
        raise InvalidArgumentError(f"parameter 'dimensions' is {dimensions}; this checkpoint has {self}")

    def __str__(self) -> str:
        if isinstance(self.sizes, range):
            return f"any from {self.sizes.start} to {self.dim}"
        return ", ".join(str(size) for size in (*self.sizes, self.dim))

    def told(self, setting: str) -> Matryoshka:
        """With a pipeline's setting in place of what the files say.

        Args:
            setting: `auto` leaves it to the files; `off`; `any`; or lengths with commas between them.

        Raises:
            CheckpointError: a length is not below the whole one.
        """
        if setting == "auto":
            return self
        if setting == "off":
            return Matryoshka(self.dim)
        origin = f"matryoshka {setting}"
        if setting == "any":
            return Matryoshka(self.dim, range(1, self.dim), self.default, origin)
        return Matryoshka(self.dim, _listed(origin, map(int, setting.split(",")), self.dim), self.default, origin)


def check_setting(setting: str) -> None:
    """Refuse what `Matryoshka.told` does not understand.

    Raises:
        CheckpointError: says what is allowed.
    """
    if not _SETTING.fullmatch(setting):
        raise CheckpointError(f"matryoshka {setting!r} is not auto, off, any, or lengths such as 64,128,256")


def read_matryoshka(
    dim: int,
    declarations: Iterable[tuple[Path, Mapping[str, Any]]],
    truncate_dim: tuple[Path, Any],
    family: Sizes,
) -> Matryoshka:
    """What the files say; the first that does is believed.

    Args:
        dim: of a whole vector.
        declarations: files and what they hold.
        truncate_dim: sentence-transformers' setting of that name, which cuts every vector, and the file it is from.
        family: what is known of the family, for files that do not say.

    Raises:
        CheckpointError: what they say cannot be.
    """
    sizes, origin = family, "family" if family else ""
    for path, values in declarations:
        declared = _declared(path, values, dim)
        if declared is not None:
            sizes, origin = declared, path.name
            break
    path, value = truncate_dim
    if value is None:
        return Matryoshka(dim, sizes, origin=origin)
    [default] = _listed(f"{path}: truncate_dim", [value], dim) or [0]
    # A checkpoint that comes cut to some length was trained for that one at least.
    return Matryoshka(dim, sizes or (default,), default, origin or path.name)


def family_sizes(config: Mapping[str, Any], head: HeadConfig, prompts: Mapping[str, str], dim: int) -> Sizes:
    """Lengths that published families are trained for, although their files do not say so.

    Qwen3-Embedding (32 and up), pplx-embed (128 and up), EmbeddingGemma (128, 256, 512), nomic-embed-text-v1.5 (64,
    128, 256, 512); from their model cards. A family is told by its architecture together with its head and prompts,
    so that a model that was trained from the same backbone for something else is not taken for it.
    """
    kind = config.get("model_type")
    mean = head.modes == (PoolingMode.MEAN,)
    if kind == "bidirectional_pplx_qwen3":
        return range(128, dim)
    if kind == "qwen3" and head.modes == (PoolingMode.LAST,) and head.normalize:
        return range(32, dim) if prompts.get("query", "").startswith("Instruct: ") else ()
    if kind == "gemma3_text" and mean and len(head.dense) == 2 and head.normalize:
        return tuple(size for size in (128, 256, 512) if size < dim)
    # Version 1 was not trained so; its modules end in Normalize.
    if kind == "nomic_bert" and mean and not head.normalize and not config.get("moe_every_n_layers"):
        return tuple(size for size in (64, 128, 256, 512) if size < dim)
    return ()


def _declared(path: Path, values: Mapping[str, Any], dim: int) -> Sizes | None:
    for key in _LISTS:
        if values.get(key) is not None:
            sizes = values[key]
            if not isinstance(sizes, list):
                raise CheckpointError(f"{path}: {key} is {sizes!r}, not a list of lengths")
            return _listed(f"{path}: {key}", sizes, dim)
    return range(1, dim) if values.get(_ANY) is True else None


def _listed(origin: str, sizes: Iterable[Any], dim: int) -> tuple[int, ...]:
    """The lengths below the whole one, in ascending order."""
    found = list(sizes)
    for size in found:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= dim:
            raise CheckpointError(f"{origin}: {size!r} is not a number from 1 to {dim}")
    return tuple(sorted({size for size in found if size < dim}))
