"""Processes of Python models as /proc shows them; a waiting shell of that name stands in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rose_ensemble import stubs
from rose_ensemble.stubs import live_stubs
from tests.support import stand_in
from tests.support.stand_in import stand_in_stub
from tests.support.waiting import wait_until


def _pids() -> dict[int, str]:
    return {stub.pid: stub.model for stub in live_stubs(os.getpid())}


def test_stubs_are_found_with_their_models(tmp_path: Path) -> None:
    with (
        stand_in_stub(tmp_path) as rose,
        stand_in_stub(tmp_path, "tokenize") as tokenize,
        stand_in_stub(tmp_path, name="something_else") as other,
    ):
        expected = {rose.pid: "rose", tokenize.pid: "tokenize"}
        wait_until(lambda: _pids() == expected, "both run under their own names")
        assert other.poll() is None
        assert live_stubs(rose.pid) == frozenset()


def test_a_stopped_stub_lives_and_a_killed_one_does_not(tmp_path: Path) -> None:
    with stand_in_stub(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        (stub,) = live_stubs(os.getpid())
        assert stub.pid == process.pid
        stub.kill()
        wait_until(lambda: _pids() == {}, "it has ended")  # a zombie until it is waited for
        assert process.wait(60) == -signal.SIGKILL
        stub.kill()  # no harm


@pytest.mark.parametrize("field", ["began", "model"])
def test_another_process_under_the_same_number_is_spared(tmp_path: Path, field: str) -> None:
    with stand_in_stub(tmp_path) as process:
        (stub,) = live_stubs(os.getpid())
        former = replace(stub, began=stub.began - 1) if field == "began" else replace(stub, model="other")
        former.kill()
        process.communicate(b"\n", timeout=60)  # it can still read, and ends by itself
        assert process.returncode == 0


def test_what_a_stub_shared_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stubs, "_REGIONS", tmp_path)
    (tmp_path / "region").touch()
    with stand_in_stub(tmp_path):
        (stub,) = live_stubs(os.getpid())
        region, other = tmp_path / stub.region, tmp_path / f"{stub.region}_"
        region.touch()
        other.touch()
        stub.remove_region()
        assert [region.exists(), other.exists()] == [False, True]
        stub.remove_region()  # no harm
        replace(stub, region="").remove_region()


@pytest.mark.parametrize("named", ["psm_another", "triton_python_backend_shm_region_/../../etc/hosts"])
def test_only_what_triton_names_is_taken_for_a_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setattr(stand_in, "stub_region", lambda *_: named)
    with stand_in_stub(tmp_path):
        (stub,) = live_stubs(os.getpid())
        assert stub.region == ""


def test_a_program_may_have_any_name(tmp_path: Path) -> None:
    """The system cuts it after 15 bytes, here in the middle of a letter."""
    odd = tmp_path / "длинноеимя"
    odd.symlink_to(shutil.which("cat") or "/bin/cat")
    with subprocess.Popen([odd], stdin=subprocess.PIPE) as process, stand_in_stub(tmp_path) as rose:
        try:
            wait_until(lambda: _pids() == {rose.pid: "rose"}, "one of the two is a stub")
            assert b"\xd0)" in Path(f"/proc/{process.pid}/stat").read_bytes()
        finally:
            process.kill()


def test_what_a_stub_has_worked(tmp_path: Path) -> None:
    with stand_in_stub(tmp_path) as process:
        (stub,) = live_stubs(os.getpid())
        assert stub.ticks() < 20  # it only waits; starting took hundredths of a second
        assert replace(stub, began=stub.began - 1).ticks() == 0
        process.kill()
        process.wait(60)
        assert stub.ticks() == 0
    assert replace(stub, pid=os.getpid(), began=_began(os.getpid())).ticks() > 20


def _began(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
