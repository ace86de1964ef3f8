"""Adding, listing and removing pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rose_backend.errors import CheckpointError
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository, default_repository

_CHECKED_IN = Path(__file__).parents[2] / "model_repository"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_nothing_there_yet(repository: Repository) -> None:
    assert repository.pipelines() == []
    assert not repository.folder.exists()


def test_default_pipeline_becomes_the_checked_in_folders(repository: Repository) -> None:
    repository.add(Pipeline())
    for model in ("embed", "tokenize", "rose"):
        folder = repository.folder / model
        assert (folder / "config.pbtxt").read_bytes() == (_CHECKED_IN / model / "config.pbtxt").read_bytes()
        assert (folder / "1").is_dir()
    for model in ("tokenize", "rose"):
        adapter = (_CHECKED_IN / model / "1" / "model.py").read_bytes()
        assert (repository.folder / model / "1" / "model.py").read_bytes() == adapter
    assert not (repository.folder / "embed" / "1" / "model.py").exists()


def test_what_is_added_is_listed(repository: Repository, minilm: Path) -> None:
    bge = Pipeline("bge", str(minilm), ("cuda:0", "cuda:1"), tokenizers=2)
    repository.add(Pipeline())
    repository.add(bge)
    assert Repository(repository.folder).pipelines() == [bge, Pipeline()]  # by name


def test_adding_again_replaces(repository: Repository, minilm: Path) -> None:
    repository.add(Pipeline("a", str(minilm), ("cpu",)))
    changed = Pipeline("a", str(minilm), ("cuda:1",))
    repository.add(changed)
    assert repository.pipelines() == [changed]
    assert "engine-0-cuda-1" in (repository.folder / "a_rose" / "config.pbtxt").read_text()


def test_removing_leaves_the_others(repository: Repository, minilm: Path) -> None:
    repository.add(Pipeline())
    repository.add(Pipeline("a", str(minilm)))
    repository.remove("a")
    assert repository.pipelines() == [Pipeline()]
    assert sorted(folder.name for folder in repository.folder.iterdir()) == ["embed", "rose", "tokenize"]
    assert (minilm / "config.json").is_file()  # the checkpoint stays


def test_removing_what_is_not_there(repository: Repository) -> None:
    repository.add(Pipeline())
    with pytest.raises(CheckpointError, match=r"no pipeline 'a'.*\['embed'\]"):
        repository.remove("a")


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ("embed", "tokenize", "tokenize"),
        ("embed", "rose", "rose"),
        ("a", "a_rose", "a_rose"),
        ("a", "a_tokenize", "a_tokenize"),
        ("a_rose", "a", "a_rose"),
    ],
)
def test_model_names_that_are_taken(repository: Repository, minilm: Path, first: str, second: str, clash: str) -> None:
    repository.add(Pipeline(first, str(minilm)))
    with pytest.raises(CheckpointError, match=f"'{clash}'.*belong to pipeline '{first}'"):
        repository.add(Pipeline(second, str(minilm)))
    assert [pipeline.name for pipeline in repository.pipelines()] == [first]


def test_a_record_is_one_that_earlier_versions_read(repository: Repository, minilm: Path) -> None:
    """Rolling back migrates nothing: a key that they do not know would stop them."""
    repository.add(Pipeline("a", str(minilm)))
    record = json.loads((repository.folder / "a" / "pipeline.json").read_text())
    assert set(record) == {"name", "checkpoint", "devices", "tokenizers", "engine", "scores"}
    assert [pipeline.name for pipeline in repository.pipelines()] == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a b", "-a", "_a", "a\n", "caf\u00e9"])
def test_names_that_are_no_model_names(repository: Repository, minilm: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="use letters, digits"):
        repository.add(Pipeline(name, str(minilm)))
    assert not repository.folder.exists()


def test_a_checkpoint_that_cannot_be_served_is_not_added(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing"):
        repository.add(Pipeline("a", str(tmp_path / "nothing")))
    assert not repository.folder.exists()


@pytest.mark.parametrize("record", ["{", "[]", '{"name": "a", "colour": "blue"}', '{"name": "a"}'])
def test_a_record_that_cannot_be_read_is_named(repository: Repository, record: str) -> None:
    path = repository.folder / "a" / "pipeline.json"
    path.parent.mkdir(parents=True)
    path.write_text(record)
    with pytest.raises(CheckpointError, match=r"a/pipeline\.json"):
        repository.pipelines()


def test_folders_of_others_are_left_alone(repository: Repository) -> None:
    own = repository.folder / "own" / "1"
    own.mkdir(parents=True)
    repository.add(Pipeline())
    assert repository.pipelines() == [Pipeline()]
    repository.remove("embed")
    assert own.is_dir()


def test_record_is_plain_json(repository: Repository) -> None:
    repository.add(Pipeline())
    record = json.loads((repository.folder / "embed" / "pipeline.json").read_text())
    assert record["name"] == "embed"
    assert record["devices"] == ["auto"]


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_repository() == tmp_path / "rose" / "repository"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_repository() == tmp_path / "home" / ".local" / "state" / "rose" / "repository"
