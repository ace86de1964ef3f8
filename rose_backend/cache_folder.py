"""Where what was measured or learned is kept for the next process. Nothing there is needed to serve."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """`rose` in the user's cache; for a user without a home, which containers often run as, among temporary files."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / "rose"
    try:
        return Path.home() / ".cache" / "rose"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"rose-{os.getuid()}"
