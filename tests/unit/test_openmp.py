"""Threads that a caller's team leaves behind, as the kernel counts them; in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

_BEGIN = """
import rose_backend, threading, torch
from pathlib import Path
from rose_backend.openmp import Team
from tests.support.waiting import wait_until
def count(): return len(list(Path("/proc/self/task").iterdir()))
def compute(): (torch.ones(1 << 20) + 1).sum()  # enough for torch to share it out
team = Team()
"""
_AGAIN = """
def work():
    before = count()
    for _ in range(3):
        team.use()
        compute()
        assert count() == before + 1, count()
        team.give_back()
        wait_until(lambda: count() == before, "the team's thread has ended")
        team.give_back()
"""
_OTHERS = """
def work():
    done, go = threading.Event(), threading.Event()
    def other():
        team.use()
        compute()
        done.set()
        assert go.wait(30)
    thread = threading.Thread(target=other)
    thread.start()
    assert done.wait(30)
    before = count()
    team.give_back()
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


def test_loops_may_wait_awake_for_about_a_millisecond() -> None:
    settings = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = f"import rose_backend, os; print(*(os.environ[name] for name in {settings}))"
    assert _run(code, unset=settings).split() == ["passive", "20000"]
    assert _run(f"import os; os.environ['GOMP_SPINCOUNT'] = '7'; {code}").split()[1] == "7"
