"""pyarrow, which is an extra."""

from __future__ import annotations

from typing import Any

from rose_client.files.errors import FileFormatError


def require_parquet() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        FileFormatError: they cannot be imported; says how to mend that.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as cause:
        raise FileFormatError(f"parquet needs pyarrow: pip install 'rose-on-triton[bulk]' ({cause})") from cause
    return pyarrow, pyarrow.parquet
