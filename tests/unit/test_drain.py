"""What a server is asked before it is told to end."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from typing import Any

import pytest

from rose_ensemble import drain
from rose_ensemble.drain import Drain
from rose_ensemble.triton_http import TritonHttp
from tests.support.stand_in import stand_in
from tests.support.waiting import wait_until

_INDEX = "/v2/repository/index"
_UNLOAD = "/v2/repository/models/embed/unload"


class _Triton:
    """Names a state of the model after another, and the last of them for ever."""

    def __init__(self, *states: str | None) -> None:
        self.states = list(states)
        self.asked: list[str] = []

    def answer(self, path: str, posted: Any) -> tuple[int, str]:
        self.asked.append(path)
        if path != _INDEX:
            assert posted == {"parameters": {"unload_dependents": True}}
            return 200, ""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        models = [{"name": "embed", "version": "1", "state": state}, {"name": "rose", "version": "1", "state": "READY"}]
        return 200, json.dumps([{key: value for key, value in model.items() if value} for model in models])


def test_it_is_over_once_all_is_unloaded() -> None:
    triton = _Triton("READY", "UNLOADING", "UNAVAILABLE")
    with stand_in(triton.answer) as port:
        once = Drain(TritonHttp("127.0.0.1", port), ["embed"])
        assert [once.is_over() for _ in range(3)] == [False, False, True]
    assert triton.asked == [_INDEX, _UNLOAD, _INDEX, _INDEX]


def test_what_was_being_loaded_is_unloaded_too() -> None:
    triton = _Triton("UNAVAILABLE", "LOADING", "READY", "UNAVAILABLE")
    with stand_in(triton.answer) as port:
        first, then = (Drain(TritonHttp("127.0.0.1", port), ["embed"]) for _ in range(2))
        assert first.is_over()
        assert [then.is_over() for _ in range(3)] == [False, False, True]
    assert triton.asked == [_INDEX, _INDEX, _INDEX, _UNLOAD, _INDEX]


def test_steps_are_waited_for_too() -> None:
    """A client may have asked an engine without the ensemble."""
    index = [{"name": "embed", "state": "UNAVAILABLE"}, {"name": "rose", "state": "UNLOADING"}]
    with stand_in(lambda _path, _posted: (200, json.dumps(index))) as port:
        waiting = Drain(TritonHttp("127.0.0.1", port), ["embed"])
        assert not waiting.is_over()
        index[1]["state"] = "UNAVAILABLE"
        assert waiting.is_over()


def test_a_model_that_never_was_there_is_not_waited_for() -> None:
    with stand_in(_Triton(None).answer) as port:
        assert Drain(TritonHttp("127.0.0.1", port), ["embed", "another"]).is_over()


def test_it_does_not_take_for_ever() -> None:
    with stand_in(_Triton("UNLOADING").answer) as port:
        assert Drain(TritonHttp("127.0.0.1", port), ["embed"], seconds=0.0).is_over()
        assert not Drain(TritonHttp("127.0.0.1", port), ["embed"]).is_over()


def test_those_in_front_end_first_but_not_for_ever() -> None:
    triton = _Triton("UNAVAILABLE")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as front, stand_in(triton.answer) as port:
        http = TritonHttp("127.0.0.1", port)
        patient, hasty = Drain(http, ["embed"], [front]), Drain(http, ["embed"], [front], seconds=1.0)
        assert not patient.is_over()
        time.sleep(0.5)
        assert not hasty.is_over()
        assert triton.asked == []
        front.communicate()
        assert patient.is_over()
    assert triton.asked == [_INDEX]


def test_a_front_that_does_not_end_leaves_time_for_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_FRONT_SECONDS", 0.0)
    triton = _Triton("READY", "UNLOADING", "UNAVAILABLE")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as front, stand_in(triton.answer) as port:
        waiting = Drain(TritonHttp("127.0.0.1", port), ["embed"], [front])
        assert [waiting.is_over() for _ in range(3)] == [False, False, True]


def test_a_server_that_is_slow_to_say_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_ANSWER_SECONDS", 0.2)
    triton, may_answer = _Triton("UNLOADING", "UNAVAILABLE"), threading.Event()

    def answer(path: str, posted: Any) -> tuple[int, str]:
        may_answer.wait(10)
        return triton.answer(path, posted)

    with stand_in(answer) as port:
        waiting = Drain(TritonHttp("127.0.0.1", port), ["embed"])
        assert not waiting.is_over()
        may_answer.set()
        wait_until(waiting.is_over, "it is unloaded")


def test_a_server_that_does_not_say_can_be_told_to_end() -> None:
    for nonsense in ("", "{}", "[1]", '[{"state": "READY"}]', "no"):
        with stand_in(lambda _path, _posted, text=nonsense: (200, text)) as port:  # type: ignore[misc]
            assert Drain(TritonHttp("127.0.0.1", port), ["embed"]).is_over()
    assert Drain(TritonHttp("127.0.0.1", port), ["embed"]).is_over()
