"""What goes wrong with files of texts and vectors."""

from __future__ import annotations

from pathlib import Path


class FileFormatError(Exception):
    """A file is not what it should be, or its kind is not known."""


def check_suffix(path: Path, known: frozenset[str], purpose: str) -> str:
    """The path's suffix in small letters.

    Raises:
        FileFormatError: it is not among those known.
    """
    suffix = path.suffix.lower()
    if suffix not in known:
        raise FileFormatError(f"{path}: {purpose} of the kind {suffix or 'without a suffix'}; known: {sorted(known)}")
    return suffix
