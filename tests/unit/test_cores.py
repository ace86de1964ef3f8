"""Tokenizing processes share the cores they may use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rose_backend import cores as of_backend
from rose_ensemble.cores import engine_threads, share_cores


@pytest.fixture(autouse=True)
def no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_backend, "_quota", lambda: None)


@pytest.mark.parametrize(("cores", "processes", "threads"), [(16, 4, 4), (2, 1, 2), (2, 4, 1), (7, 2, 3)])
def test_each_takes_its_part(monkeypatch: pytest.MonkeyPatch, cores: int, processes: int, threads: int) -> None:
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert share_cores(processes) == threads
    monkeypatch.delenv("RAYON_NUM_THREADS")


def test_what_the_operator_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    assert share_cores(1) == 3


def test_the_library_obeys_though_it_was_imported_before() -> None:
    code = (
        "import os, threading, tokenizers\n"
        "from tokenizers import Tokenizer, models\n"
        "from rose_ensemble.cores import share_cores\n"
        "import rose_backend.cores; rose_backend.cores._quota = lambda: None\n"
        "os.sched_getaffinity = lambda _: set(range(6))\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "assert share_cores(2) == 3\n"
        "tokenizer = Tokenizer(models.WordLevel({'a': 0}, unk_token='a'))\n"
        "tokenizer.encode_batch_fast(['a'] * 1000)\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "RAYON_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


@pytest.mark.parametrize(
    ("cores", "engines", "threads"), [(16, 1, 14), (16, 2, 7), (2, 1, 2), (2, 2, 1), (7, 1, 7), (8, 1, 7), (2, 4, 1)]
)
def test_engines_leave_an_eighth_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, engines: int, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # as a compose file leaves it that nobody filled in
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert engine_threads(engines) == threads


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_how_many_threads_an_engine_has_may_be_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    assert engine_threads(1) is None
