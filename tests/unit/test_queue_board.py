"""The shared file: what one process writes another reads, and what silence means."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rose_backend.config import QueueConfig
from rose_backend.lanes import Depth
from rose_backend.queue_board import QueueBoard

CONFIG = QueueConfig(max_tokens=100, max_requests=10)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(tmp_path: Path, clock: Clock) -> QueueBoard:
    return QueueBoard(tmp_path / "board", 2, clock)


def test_a_new_board_refuses_nothing(board: QueueBoard) -> None:
    assert board.read() == []
    assert board.refusal() is None


def test_its_blocks_are_there_from_the_start(tmp_path: Path, board: QueueBoard) -> None:
    """A hole in a file of a full disk ends whoever writes into it."""
    assert (tmp_path / "board").stat().st_blocks > 0


@pytest.mark.parametrize("full", [Depth(100, 1), Depth(3, 10)])
def test_refused_only_when_every_engine_is_full(board: QueueBoard, full: Depth) -> None:
    board.write(0, full, CONFIG, 0, 0.0)
    assert board.refusal() is None  # nobody heard of the other: let it decide
    board.write(1, Depth(99, 9), CONFIG, 0, 0.0)
    assert board.refusal() is None
    board.write(1, Depth(120, 4), CONFIG, 0, 40.0)
    refusal = board.refusal()
    assert refusal is not None
    assert f"{full.tokens} of 100 tokens and {full.requests} of 10 requests wait" in refusal


def test_a_silent_engine_is_not_full(board: QueueBoard, clock: Clock) -> None:
    board.write(0, Depth(100, 1), CONFIG, 0, 0.0)
    board.write(1, Depth(100, 1), CONFIG, 0, 0.0)
    assert board.refusal() is not None
    clock.now += 6.0
    assert board.refusal() is None


def test_what_was_written_before_the_machine_started_anew_says_nothing(tmp_path: Path, clock: Clock) -> None:
    """A container keeps its files and its process ids when its host restarts; the clock begins at 0 again."""
    before = QueueBoard(tmp_path / "board", 2, clock)
    for index in range(2):
        before.write(index, Depth(100, 1), CONFIG, 100, 0.0)
    clock.now = 20.0
    board = QueueBoard(tmp_path / "board", 2, clock)
    assert board.read() == []
    assert board.refusal() is None
    assert board.another_has_room(0, 80)


def test_room_elsewhere(board: QueueBoard, clock: Clock) -> None:
    board.write(0, Depth(90, 1), CONFIG, 90, 0.0)
    board.write(1, Depth(70, 1), CONFIG, 70, 0.0)
    assert board.another_has_room(0, 80)
    assert not board.another_has_room(0, 70)
    assert not board.another_has_room(1, 80)
    clock.now += 6.0
    assert board.another_has_room(1, 80)  # idle for seconds


def test_another_process_sees_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from rose_backend.config import QueueConfig; from rose_backend.lanes import Depth\n"
        "from rose_backend.queue_board import QueueBoard\n"
        "QueueBoard(Path(sys.argv[1]), 1).write(0, Depth(7, 2), QueueConfig(7, 3), 5, 9.0)"
    )
    path = tmp_path / "board"
    board = QueueBoard(path, 1)
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    [slot] = board.read()
    assert (slot.depth, slot.config, slot.bulk_tokens, slot.tokens_per_second) == (
        Depth(7, 2),
        QueueConfig(7, 3),
        5,
        9.0,
    )
    assert slot.is_full


def test_a_reader_never_sees_a_line_half_written(tmp_path: Path) -> None:
    """Another process writes one line over and over; whatever is read in between is that line."""
    code = (
        "import sys; from pathlib import Path\n"
        "from rose_backend.config import QueueConfig; from rose_backend.lanes import Depth\n"
        "from rose_backend.queue_board import QueueBoard\n"
        "board = QueueBoard(Path(sys.argv[1]), 1)\n"
        "for _ in range(300_000): board.write(0, Depth(3, 2), QueueConfig(70, 30), 1, 9.0)"
    )
    path = tmp_path / "board"
    board = QueueBoard(path, 1)
    board.write(0, Depth(3, 2), QueueConfig(70, 30), 1, 9.0)
    seen = set()
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as writer:
        while writer.poll() is None:
            assert board.refusal() is None
            seen |= {(slot.depth, slot.config, slot.bulk_tokens) for slot in board.read()}
    assert writer.returncode == 0
    assert seen == {(Depth(3, 2), QueueConfig(70, 30), 1)}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_file_is_private_and_named_after_its_server(temporary: Path) -> None:
    board = QueueBoard.of_server(os.getpid(), "embed_rose", 1)
    [path] = temporary.iterdir()
    assert path.name == f"rose-{os.getuid()}-{os.getpid()}-embed_rose.queue"
    assert path.stat().st_mode & 0o777 == 0o600
    board.write(0, Depth(7, 2), CONFIG, 0, 0.0)
    [slot] = QueueBoard.of_server(os.getpid(), "embed_rose", 1).read()
    assert slot.depth == Depth(7, 2)


def test_files_of_servers_that_are_gone_are_removed(temporary: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    mine = f"rose-{os.getuid()}-"
    for name in (f"{mine}{ended.pid}-rose.queue", f"{mine}{os.getpid()}-other.queue", "rose-else.queue"):
        (temporary / name).touch()
    QueueBoard.of_server(os.getpid(), "rose", 1)
    left = {path.name for path in temporary.iterdir()}
    assert left == {f"{mine}{os.getpid()}-other.queue", f"{mine}{os.getpid()}-rose.queue", "rose-else.queue"}
