"""Threads that a caller's team leaves behind, as the kernel counts them; in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rose_backend.openmp import threads_wait_awake
from tests.support.checkpoints import make_bert
from tests.unit.engines import engine_on

_BEGIN = """
import os, rose_backend, threading, torch
from pathlib import Path
from rose_backend.openmp import give_back_team
from tests.support.waiting import wait_until
def count(): return len(list(Path("/proc/self/task").iterdir()))
def compute(): (torch.ones(1 << 20) + 1).sum()  # enough for torch to share it out
"""
_AGAIN = """
def work():
    before = count()
    for _ in range(3):
        compute()
        assert count() == before + 1, count()
        give_back_team()
        wait_until(lambda: count() == before, "the team's thread has ended")
        give_back_team()
"""
_OTHERS = """
def work():
    done, go = threading.Event(), threading.Event()
    def other():
        compute()
        done.set()
        assert go.wait(30)
    thread = threading.Thread(target=other)
    thread.start()
    assert done.wait(30)
    before = count()
    give_back_team()
    assert count() == before
    go.set()
    thread.join()
"""


def _run(code: str, *, unset: tuple[str, ...] = ()) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in unset} | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif("USE_OPENMP=ON" not in torch.__config__.show(), reason="this torch computes without OpenMP")
@pytest.mark.parametrize("work", [_AGAIN, _OTHERS], ids=["the caller's comes again", "another's stays"])
@pytest.mark.parametrize(
    "where", ["work()", "from concurrent.futures import ThreadPoolExecutor as E; E().submit(work).result()"]
)
def test_a_team_is_given_back(work: str, where: str) -> None:
    _run(f"{_BEGIN}{work}{where}")


_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def _settings(**given: str) -> list[str]:
    """What OpenMP will read."""
    code = f"import os; os.environ |= {given}; import rose_backend; print(*(os.environ.get(n) for n in {_SETTINGS}))"
    return _run(code, unset=_SETTINGS).split()


def test_threads_wait_awake_for_a_moment() -> None:
    assert _settings() == ["passive", "2000"]


def test_how_threads_wait_may_be_set() -> None:
    assert _settings(OMP_WAIT_POLICY="passive") == ["passive", "None"]
    assert _settings(OMP_WAIT_POLICY="active") == ["active", "None"]
    assert _settings(GOMP_SPINCOUNT="7") == ["passive", "7"]


def test_a_team_that_loading_made_is_given_back() -> None:
    """With a given token budget nothing is run before the first request."""
    done = _run(
        _BEGIN
        + """
from rose_backend.config import EngineConfig, HeadConfig
from rose_backend.engine import RoseEngine
os.environ["GOMP_SPINCOUNT"] = "2000"
from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT, resolve_checkpoint
engine = RoseEngine(EngineConfig(resolve_checkpoint(DEFAULT_CHECKPOINT), max_length=64, head=HeadConfig(),
                                 token_budget=512, cpu_threads=1000))
print(torch.get_num_threads())
compute()
before = count()
engine.leave()
wait_until(lambda: count() == before - 1, "the loading thread's team has ended")
"""
    )
    assert done.split() == ["2"]  # not more than torch would use


def test_an_engine_of_few_threads_does_not_bind_the_next() -> None:
    done = _run(
        _BEGIN
        + """
from rose_backend.config import EngineConfig, HeadConfig
from rose_backend.engine import RoseEngine
from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT, resolve_checkpoint
for threads in (1, 2, 1000):
    RoseEngine(EngineConfig(resolve_checkpoint(DEFAULT_CHECKPOINT), max_length=64, head=HeadConfig(),
                            token_budget=512, cpu_threads=threads))
    print(torch.get_num_threads())
"""
    )
    assert done.split() == ["1", "2", "2"]


@pytest.mark.parametrize(
    ("policy", "spins", "awake"),
    [("passive", None, False), ("PASSIVE", None, False), ("passive", "2000", True), ("active", None, True),
     ("active", "0", False), ("passive", "0", False)],
)  # fmt: skip
def test_where_threads_sleep_teams_do_not_meet(
    monkeypatch: pytest.MonkeyPatch, policy: str, spins: str | None, awake: bool
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if spins is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", spins)
    assert threads_wait_awake() is awake


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_alone_is_no_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    make_bert(tmp_path)
    monkeypatch.setenv("GOMP_SPINCOUNT", "2000")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert engine_on(tmp_path).has_teams is (threads > 1)
