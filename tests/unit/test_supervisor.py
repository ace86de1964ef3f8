"""The loop around a model's health: what it asks of the server, what it says, and how it ends."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rose_ensemble import stubs
from rose_ensemble import supervisor as supervisor_module
from rose_ensemble.health import HealthPolicy
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.server_process import Endpoints, ServerProcess, ServerStartError
from rose_ensemble.supervisor import ModelFailedError, Supervisor
from tests.support.stand_in import ScriptServer, stand_in, stub_command, stub_region
from tests.support.waiting import wait_until

_POLICY = HealthPolicy(interval=0.01, hang=30.0, faults=2, tries=2, backoff=0.01)
_FINE = (200, "{}")
_DEAD = (500, """{"error":"Stub process 'engine-0-auto_0' is not healthy."}""")
_UNLOADS = [
    ("/v2/repository/models/embed/unload", {"parameters": {"unload_dependents": True}}),
    ("/v2/repository/models/tokenize/unload", {"parameters": {"unload_dependents": False}}),
    ("/v2/repository/models/rose/unload", {"parameters": {"unload_dependents": False}}),
]
_LOAD = ("/v2/repository/models/embed/load", {})


class _Triton:
    """Answers probes from a list, by repeating its last entry; tells what else it was asked."""

    def __init__(self, probes: list[tuple[int, str]], load: tuple[int, str] = _FINE) -> None:
        self.probes = probes
        self.load = load
        self.asked: list[tuple[str, Any]] = []
        self.on_load: Callable[[], None] = lambda: None
        self.on_unload: Callable[[], None] = lambda: None
        self.on_last_probe: Callable[[], None] = lambda: None

    def answer(self, path: str, posted: Any) -> tuple[int, str]:
        if path.endswith("/infer"):
            if len(self.probes) > 1:
                return self.probes.pop(0)
            self.on_last_probe()
            return self.probes[0]
        if path == "/metrics":
            return _FINE
        self.asked.append((path, posted))
        if path.endswith("/load"):
            self.on_load()
            return self.load
        self.on_unload()
        return _FINE


@contextmanager
def _supervised(
    triton: _Triton, folder: Path, script: str = "import time; time.sleep(600)"
) -> Iterator[tuple[ServerProcess, Supervisor]]:
    with stand_in(triton.answer) as port:
        endpoints = Endpoints("127.0.0.1", port, 1, port)
        with ServerProcess(ScriptServer(Path(), None, {}, script), folder, ["embed"], endpoints) as server:
            yield server, Supervisor(server, [Pipeline()], _POLICY)


def test_a_failed_model_is_reloaded_and_both_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    triton = _Triton([_FINE, _FINE, _DEAD, _FINE, _FINE])
    with _supervised(triton, tmp_path) as (server, supervisor), caplog.at_level(logging.INFO):
        triton.on_last_probe = server.terminate
        assert supervisor.run() == -15
    assert triton.asked == [*_UNLOADS, _LOAD]
    failed, recovered = caplog.messages
    assert failed == """model failed: model=embed cause="Stub process 'engine-0-auto_0' is not healthy.\""""
    assert re.fullmatch(r"model recovered: model=embed seconds=\d+\.\d tries=1", recovered)


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    triton = _Triton([_DEAD], load=(400, '{"error":"load failed: no such file:\\n model.safetensors"}'))
    with _supervised(triton, tmp_path) as (server, supervisor):
        expected = "model 'embed' failed, 2 reloads in vain; last: load failed: no such file: model.safetensors"
        with pytest.raises(ModelFailedError, match=f"^{re.escape(expected)}$"):
            supervisor.run()
        assert server.stopping.is_set()
    assert triton.asked == [*_UNLOADS, _LOAD] * 2


def test_processes_of_the_generation_before_end_before_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold memory that the next try may lack."""
    monkeypatch.setattr(stubs, "_REGIONS", tmp_path)
    region = tmp_path / stub_region(tmp_path, "rose")
    region.touch()
    stub = stub_command(tmp_path)
    script = (
        "import subprocess, time; "
        f"stub = subprocess.Popen({stub}, executable='/bin/sh', stdin=subprocess.PIPE); time.sleep(600)"
    )
    triton = _Triton([_DEAD], load=(400, '{"error":"out of memory"}'))
    living: list[tuple[int, bool]] = []
    with _supervised(triton, tmp_path, script) as (server, supervisor):
        triton.on_load = lambda: living.append((len(server.stubs()), region.exists()))
        wait_until(lambda: len(server.stubs()) == 1, "the stub is there")
        with pytest.raises(ModelFailedError, match="out of memory"):
            supervisor.run()
    assert living == [(1, True), (0, False)]


def test_nothing_is_loaded_into_a_server_that_is_to_end(tmp_path: Path) -> None:
    triton = _Triton([_DEAD])
    with _supervised(triton, tmp_path) as (server, supervisor):
        triton.on_unload = server.terminate
        assert supervisor.run() == -15
        wait_until(lambda: len(triton.asked) >= 3, "all is unloaded")
        wait_until(lambda: "watch-embed" not in {thread.name for thread in threading.enumerate()}, "the watch is over")
    assert triton.asked == _UNLOADS


def test_what_breaks_the_watch_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server nobody watches would look like a watched one."""

    def broken(*arguments: object, **_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(supervisor_module, "probe", broken)
    with (
        _supervised(_Triton([_FINE]), tmp_path) as (_, supervisor),
        pytest.raises(ZeroDivisionError, match="a mistake of ours"),
    ):
        supervisor.run()


def test_a_server_that_ends_by_itself_gives_its_status(tmp_path: Path) -> None:
    with _supervised(_Triton([_FINE]), tmp_path, "raise SystemExit(7)") as (_, supervisor):
        assert supervisor.run() == 7


def test_ready_means_answered(tmp_path: Path) -> None:
    triton = _Triton([(503, '{"error":"queue full"}'), (503, '{"error":"queue full"}'), _FINE])
    with _supervised(triton, tmp_path) as (_, supervisor):
        supervisor.wait_until_answering()
    assert len(triton.probes) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_DEAD, "model 'embed' cannot embed: Stub process 'engine-0-auto_0' is not healthy."),
        ((500, '{"error":"the step failed"}'), "model 'embed' cannot embed: the step failed"),
        ((404, '{"error":"unknown model"}'), "model 'embed' cannot embed: unknown model"),
        ((503, '{"error":"queue full"}'), "model 'embed' gave no answer within 0 s; last: queue full"),
    ],
    ids=["dead", "fault", "absent", "busy"],
)
def test_a_first_answer_that_does_not_come(tmp_path: Path, answer: tuple[int, str], message: str) -> None:
    with (
        _supervised(_Triton([answer]), tmp_path) as (_, supervisor),
        pytest.raises(ServerStartError, match=f"^{re.escape(message)}$"),
    ):
        supervisor.wait_until_answering(timeout=0.3)
