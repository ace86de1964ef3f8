"""Programs that Debian packages carry and a test wants once, without installing them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def program(name: str, package: str, folder: Path) -> Path:
    """The program from PATH, or unpacked from its Debian package into `folder`; skips the test where neither is."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    if shutil.which("apt-get") is None:
        pytest.skip(f"no {name} on PATH, and no apt-get to fetch {package} with")
    found = folder / "root" / "usr" / "bin" / name
    if not found.is_file():
        fetched = subprocess.run(
            ["apt-get", "download", package], cwd=folder, capture_output=True, text=True, timeout=240
        )
        archives = list(folder.glob(f"{package}_*.deb"))
        if fetched.returncode or not archives:
            pytest.skip(f"apt-get download {package}: {fetched.stderr.strip()[-200:]}")
        subprocess.run(["dpkg", "-x", os.fspath(archives[0]), os.fspath(folder / "root")], check=True, timeout=120)
    return found
