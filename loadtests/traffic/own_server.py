"""A server of our own to put under load: `rose serve` with its gateway, as a process beside the load generator."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .running import LoadError, ScoreTarget, Target
from .texts import DOCUMENT_WORDS

_ADDRESS = re.compile(r"\s+(gRPC|HTTP|metrics|gateway)\s+(?:http://)?([^\s/]+)")
_KINDS = {"grpc": "gRPC", "http": "HTTP", "openai": "gateway"}
_STOP_SECONDS = 60


@dataclass(frozen=True)
class Served:
    """What is served.

    Attributes:
        checkpoint: folder of the model that embeds; None: the default model.
        reranker: folder of the model that scores; None: the gateway scores, by cosine.
        document_words: of every document to be scored.
        options: others of `rose serve`.
    """

    checkpoint: Path | None = None
    reranker: Path | None = None
    document_words: int = DOCUMENT_WORDS
    options: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        """Its command line, but for the repository; on free ports, the models as `embed` and `rerank`."""
        command = [sys.executable, "-m", "rose_client.cli", "serve", "--host", "127.0.0.1"]
        command += [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics", "gateway")]
        if self.reranker is None:
            command.append("--gateway")
        checkpoints = {"embed": self.checkpoint, "rerank": self.reranker}
        for name, folder in checkpoints.items():
            command += ["--checkpoint", str(folder), "--name", name] if folder is not None else []
        return [*command, *self.options]


@contextmanager
def own_server(served: Served, kind: str, log: IO[bytes]) -> Iterator[Target]:
    """Serve, on free ports of the loopback, until the block ends.

    Args:
        served: which models.
        kind: by what protocol it is asked: `grpc`, `http` or `openai`.
        log: where its standard error goes.

    Raises:
        LoadError: it does not start, or `kind` needs a gateway and there is none.
    """
    if served.reranker is not None and (served.checkpoint is None or kind == "openai"):
        raise LoadError("a reranker goes with a checkpoint that embeds, and is not asked over the gateway here")
    with tempfile.TemporaryDirectory() as scratch:
        command = [*served.command, f"--repository={scratch}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                yield _target(served, kind, _addresses(process))
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _addresses(process: subprocess.Popen[str]) -> dict[str, str]:
    """Those that it prints once it is ready, by name."""
    found: dict[str, str] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if at := _ADDRESS.match(line):
            found[at[1]] = at[2]
        if line.startswith("try:"):
            return found
    raise LoadError(f"rose serve ended with status {process.wait()} before it was ready; its log says why")


def _target(served: Served, kind: str, at: dict[str, str]) -> Target:
    if served.reranker is not None:
        score = ScoreTarget(kind, at[_KINDS[kind]], "rerank", served.document_words)
    else:
        score = ScoreTarget("rerank", f"http://{at['gateway']}/v1/rerank", "embed", served.document_words)
    host = f"http://{at['gateway']}/v1/embeddings" if kind == "openai" else at[_KINDS[kind]]
    return Target(kind, host, "embed", f"http://{at['metrics']}/metrics", score)
