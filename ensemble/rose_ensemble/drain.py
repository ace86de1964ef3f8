"""Before a server is told to end: have it finish what it has begun.

Told to end, Triton 24.10 refuses each step that has not begun, so a request that is being tokenized is refused as well,
and a request that is cancelled in the moment of such a refusal ends the server with a segmentation fault. An ensemble
that is unloaded does not begin anything new ("has no available versions"), and has all of its steps for what it began;
those end in order then, while a server that was told to end waits for connections of HTTP until its exit timeout.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from subprocess import Popen
from typing import Any

from rose_ensemble.triton_http import TritonHttp

_MOST_SECONDS = 60.0
_FRONT_SECONDS = 50.0  # of these
_ANSWER_SECONDS = 2.0  # what is unloaded is unloaded, whoever waits for it
_GONE = (None, "UNAVAILABLE")
_WITH_STEPS = {"parameters": {"unload_dependents": True}}


class Drain:
    """Unloads ensembles once those who ask them have ended, and tells when nothing of them is left.

    Args:
        http: the server's.
        models: the ensembles' names.
        fronts: processes that are ending, and until then may ask the ensembles for a part of their work.
        seconds: after which it is over anyway.
    """

    def __init__(
        self,
        http: TritonHttp,
        models: Sequence[str],
        fronts: Sequence[Popen[Any]] = (),
        seconds: float = _MOST_SECONDS,
    ) -> None:
        self._http = http
        self._models = models
        self._fronts = fronts
        self._ends_at = time.monotonic() + seconds
        self._fronts_end_at = self._ends_at - seconds + min(seconds, _FRONT_SECONDS)

    @property
    def waits_for_fronts(self) -> bool:
        """Whether the models stay yet."""
        return time.monotonic() < self._fronts_end_at and any(front.poll() is None for front in self._fronts)

    def is_over(self) -> bool:
        """Whether all are unloaded, it took too long, or the server cannot say; unloads what is loaded."""
        if time.monotonic() > self._ends_at:
            return True
        if self.waits_for_fronts:
            return False
        try:
            _, text = self._http.post("/v2/repository/index", {}, _ANSWER_SECONDS)
            states = {entry["name"]: entry.get("state") for entry in json.loads(text)}
            for model in self._models:
                if states.get(model) == "READY":  # also again: somebody may have been loading it
                    self._http.post(f"/v2/repository/models/{model}/unload", _WITH_STEPS, _ANSWER_SECONDS)
        except TimeoutError:  # it has other things to do
            return False
        except (OSError, ValueError, TypeError, KeyError):  # whatever is wrong with it, it can be told to end
            return True
        # Steps as well: clients may ask an engine without the ensemble.
        return all(states.get(model) in _GONE for model in self._models) and "UNLOADING" not in states.values()
