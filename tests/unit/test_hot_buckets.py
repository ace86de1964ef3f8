"""What one process learns of its traffic, the next one finds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rose_backend.buckets import Bucket
from rose_backend.config import EngineConfig, HeadConfig
from rose_backend.hot_buckets import HotBuckets

LARGEST = Bucket(8192, 512, 8192)
A, B, C = Bucket(16, 1, 32), Bucket(128, 1, 128), Bucket(8192, 16, 512)


def all_from_before(hot: HotBuckets) -> list[Bucket]:
    found = []
    while (bucket := hot.next_from_before()) is not None:
        found.append(bucket)
    return found


def test_the_next_process_finds_the_hottest_first(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "hot.json"
    hot = HotBuckets(path, LARGEST)
    assert hot.next_from_before() is None
    for bucket in (A, A, B, C, C, C, B, C):
        hot.hit(bucket)
    hot.save(now=True)
    assert all_from_before(HotBuckets(path, LARGEST)) == [C, A, B]


def test_hits_fade_with_every_restart(tmp_path: Path) -> None:
    path = tmp_path / "hot.json"
    hot = HotBuckets(path, LARGEST)
    for _ in range(8):
        hot.hit(A)
    hot.save(now=True)
    later = HotBuckets(path, LARGEST)  # A counts 4 now
    for _ in range(5):
        later.hit(B)
    later.save(now=True)
    assert all_from_before(HotBuckets(path, LARGEST)) == [B, A]  # 2 each, as they were ranked
    for _ in range(3):
        fading = HotBuckets(path, LARGEST)
        fading.hit(C)
        fading.hit(C)
        fading.save(now=True)
    assert all_from_before(HotBuckets(path, LARGEST)) == [C]


def test_buckets_beyond_the_limits_are_forgotten(tmp_path: Path) -> None:
    hot = HotBuckets(tmp_path / "hot.json", LARGEST)
    for bucket in (A, A, C, C):
        hot.hit(bucket)
    hot.save(now=True)
    assert all_from_before(HotBuckets(tmp_path / "hot.json", Bucket(4096, 512, 8192))) == [A]


def test_a_save_too_soon_or_without_news_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hot.json"
    hot = HotBuckets(path, LARGEST)
    hot.save(now=True)
    assert not path.exists()
    hot.hit(A)
    hot.save()
    assert not path.exists()  # a minute has not passed


@pytest.mark.parametrize("text", ["", "{", "{}", "[[1]]", '[["a", 1, 1, 1]]', "[1]", "null", "[[1e999, 1, 1, 1]]"])
def test_a_file_that_is_not_ours_is_no_obstacle(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hot.json"
    path.write_text(text)
    hot = HotBuckets(path, LARGEST)
    assert hot.next_from_before() is None
    hot.hit(A)
    hot.hit(A)
    hot.save(now=True)
    assert all_from_before(HotBuckets(path, LARGEST)) == [A]


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    hot = HotBuckets(tmp_path / "file" / "hot.json", LARGEST)
    hot.hit(A)
    hot.save(now=True)


def test_a_folder_that_cannot_be_looked_into_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the home of root for a process that is not root."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("stat", "open", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)
    hot = HotBuckets(tmp_path / "hot.json", LARGEST)
    hot.hit(A)
    hot.save(now=True)


def test_a_user_without_a_home_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for _ in range(2):
        hot = HotBuckets.of(EngineConfig(Path("checkpoint"), 512, HeadConfig()), "a card", LARGEST)
        hot.hit(A)
        hot.hit(A)
        hot.save(now=True)
    assert all_from_before(hot) == [A]
