"""One real tiny inference through an ensemble, and what its outcome says about the processes behind it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum

from rose_ensemble.triton_http import TritonHttp

_EMBED_BODY = {
    "inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["probe"]}],
    "outputs": [{"name": "EMBEDDING"}],
    "parameters": {"probe": True},
}
_SCORE_BODY = {
    "inputs": [
        {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": ["probe"]} for name in ("QUERY", "DOCUMENT")
    ],
    "outputs": [{"name": "LOGIT"}],
    "parameters": {"probe": True},
}
_METRICS_SECONDS = 5.0


class Outcome(Enum):
    """What a probe found."""

    ANSWERED = "answered"
    BUSY = "busy"  # refused for now, or silent: says nothing against the processes
    ABSENT = "absent"  # not loaded: unloaded by someone, or not back yet
    FAULT = "fault"  # the server answers, but with an error that a tiny text does not deserve
    DEAD = "dead"  # a process is gone, or nobody listens


@dataclass(frozen=True)
class Observation:
    """A probe's outcome.

    Attributes:
        outcome: what it was.
        cause: the server's words, or the system's.
        progress: a count that moves while the engine works, whoever's work it is; None if it could not be read.
    """

    outcome: Outcome
    cause: str = ""
    progress: int | None = None


def probe(server: TritonHttp, model: str, timeout: float, *, scores: bool = False) -> Observation:
    """Embed one short text, or score it.

    Args:
        server: Triton's HTTP address.
        model: the ensemble.
        timeout: seconds to wait; silence is `BUSY`, because a full queue is silent too.
        scores: whether it has the scoring contract.
    """
    try:
        status, text = server.post(f"/v2/models/{model}/infer", _SCORE_BODY if scores else _EMBED_BODY, timeout)
    except ConnectionRefusedError as cause:
        return Observation(Outcome.DEAD, f"HTTP: {cause.strerror}")
    except OSError as cause:
        return Observation(Outcome.BUSY, f"HTTP: {cause}")
    if status == 200:
        return Observation(Outcome.ANSWERED)
    return Observation(_outcome(status, text), error_text(text))


def read_batches(metrics: TritonHttp, model: str) -> int | None:
    """Batches the engines of a model have run, from the metrics page; None if the page does not answer or tell."""
    try:
        _, page = metrics.get("/metrics", _METRICS_SECONDS)
    except OSError:
        return None  # a sign of life that is missing is no sign of death
    samples = re.findall(rf'^rose_batches_total{{[^}}]*model="{re.escape(model)}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return int(sum(map(float, samples))) if samples else None


def error_text(body: str) -> str:
    """The message in a Triton error body, or a body that is something else; in one line."""
    try:
        message = str(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        message = body
    return " ".join(message.split())


def _outcome(status: int, text: str) -> Outcome:
    if status == 503:
        return Outcome.BUSY
    if status == 404:
        return Outcome.ABSENT
    if status == 500 and "is not healthy" in text:  # "Stub process '...' is not healthy."
        return Outcome.DEAD
    return Outcome.FAULT
