"""Cores within a control group's quota, as the kernel writes it down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rose_backend import cores


@pytest.mark.parametrize(
    ("limit", "usable"),
    [("max 100000", 16), ("200000 100000", 2), ("250000 100000", 3), ("50000 100000", 1), ("6400000 100000", 16)],
)
def test_a_quota_of_the_second_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, usable: int) -> None:
    (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(cores, "_CGROUP_2", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert cores.usable_cores() == usable


@pytest.mark.parametrize(("quota", "usable"), [("-1", 16), ("400000", 4), ("", 16)])
def test_a_quota_of_the_first_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, usable: int) -> None:
    (tmp_path / "quota").write_text(quota)
    (tmp_path / "period").write_text("100000\n")
    monkeypatch.setattr(cores, "_CGROUP_2", tmp_path / "none")
    monkeypatch.setattr(cores, "_CGROUP_1", (tmp_path / "quota", tmp_path / "period"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert cores.usable_cores() == usable


def test_no_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "_CGROUP_2", tmp_path / "none")
    monkeypatch.setattr(cores, "_CGROUP_1", (tmp_path / "none", tmp_path / "none"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    assert cores.usable_cores() == 2
