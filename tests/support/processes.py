"""Commands that run beside a test, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def rose_command(*arguments: str) -> list[str]:
    """`rose` under this interpreter."""
    return [sys.executable, "-m", "rose_client.cli", *arguments]


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process with piped standard output and its standard error in `log`; ended with the block."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(environment or {})}
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(150)  # killed, `rose serve` would leave its server behind
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def processes_mentioning(text: str | Path) -> list[int]:
    """Ids of live processes whose command line holds the text, this one's and zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if str(text).encode() in command:
            found.append(int(entry.name))
    return found
