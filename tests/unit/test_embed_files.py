"""`rose embed FILE` and `rose search`: every kind of file in and out, and what is wrong with files."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as arrow
import pytest
from click.testing import Result
from pyarrow import parquet
from typer.testing import CliRunner

from rose_client.cli.main import app
from rose_client.cli.search import paragraphs
from tests.support.fake_triton import Call, FakeTriton, RefusalError

_TEXTS = ["tea", "a pot, of\ttea", 'say "tea"', "Тхé ☕", "x" * 200_000, *(f"text {number}" for number in range(600))]


@pytest.fixture
def fake(fake_server: FakeTriton) -> FakeTriton:
    fake_server.infer = _lengths
    return fake_server


def _lengths(call: Call) -> Any:
    """Vectors of a text's length in bytes, its first and its last byte."""
    texts = call.inputs["TEXT"]
    rows = np.array([[len(text), text[0], text[-1]] for text in texts], np.float32)
    return {"EMBEDDING": rows[None], "TOKEN_COUNT": np.arange(len(texts), dtype=np.int32)[None]}


def _right(texts: list[str]) -> Any:
    return [[len(text.encode()), text.encode()[0], text.encode()[-1]] for text in texts]


def _rose(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def _write_txt(path: Path, texts: list[str]) -> None:
    path.write_text("\r\n".join(texts), encoding="utf-8-sig", newline="")


def _write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("\n\n".join(json.dumps({"id": 1, "body": text}) for text in texts), encoding="utf-8")


def _write_csv(path: Path, texts: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "body"), *((1, text) for text in texts)])


def _write_parquet(path: Path, texts: list[str]) -> None:
    parquet.write_table(arrow.table({"id": [1] * len(texts), "body": texts}), path, row_group_size=100)


_WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    "txt": _write_txt,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "parquet": _write_parquet,
}


@pytest.mark.parametrize("kind", _WRITERS)
def test_every_kind_of_file_is_read(fake: FakeTriton, tmp_path: Path, kind: str) -> None:
    _WRITERS[kind](tmp_path / f"in.{kind}", _TEXTS)
    output = tmp_path / "out.npy"
    result = _rose("embed", tmp_path / f"in.{kind}", "-o", output, "--url", fake.url, "--column", "body")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"605 texts -> {output}\n"
    vectors = np.load(output)
    assert (vectors.dtype, vectors.tolist()) == (np.float32, _right(_TEXTS))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"in.{kind}", "out.npy"])


@pytest.mark.parametrize("count", [1, 605])
def test_parquet_out(fake: FakeTriton, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose_client.files.sinks._ROWS_AT_ONCE", 300)
    _write_txt(tmp_path / "in.txt", _TEXTS[:count])
    result = _rose("embed", tmp_path / "in.txt", "--output", tmp_path / "out.parquet", "--url", fake.url)
    assert result.exit_code == 0, result.stderr
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["text", "tokens", "embedding"]
    assert table["text"].to_pylist() == _TEXTS[:count]
    assert table["embedding"].to_pylist() == _right(_TEXTS[:count])
    assert table.schema.field("embedding").type == arrow.list_(arrow.float32(), 3)
    assert table["tokens"].to_pylist()[0] == 0


def test_json_lines_out(fake: FakeTriton, tmp_path: Path) -> None:
    _write_txt(tmp_path / "in.txt", _TEXTS)
    to_file = _rose("embed", tmp_path / "in.txt", "-o", tmp_path / "out.jsonl", "--url", fake.url)
    assert to_file.exit_code == 0, to_file.stderr
    shown = _rose("embed", tmp_path / "in.txt", "--url", fake.url)
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == shown.stdout
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [record["text"] for record in records] == _TEXTS
    assert [record["embedding"] for record in records] == _right(_TEXTS)


def test_options_go_to_the_server(fake: FakeTriton, tmp_path: Path) -> None:
    _write_txt(tmp_path / "in.txt", ["tea"])
    options = ["--input-type", "document", "--dimensions", "3", "--model", "other", "--url", fake.url]
    assert _rose("embed", tmp_path / "in.txt", *options).exit_code == 0
    [call] = fake.calls
    assert call.model == "other"
    assert (call.parameters["input_type"], call.parameters["dimensions"]) == ("document", 3)


def test_texts_and_standard_input(fake: FakeTriton) -> None:
    given = _rose("embed", "tea", "a pot", "--url", fake.url)
    read = _rose("embed", "--url", fake.url, stdin="tea\na pot\n")
    assert given.stdout == read.stdout
    assert [json.loads(line)["text"] for line in given.stdout.splitlines()] == ["tea", "a pot"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", b'{"text": "tea"}\n{"body": "tea"}', "line 2: not an object with the field 'text'"),
        ("in.jsonl", b'{"text": "tea"}\n\n["tea"]', "line 3: not an object"),
        ("in.jsonl", b'{"text": 5}', "line 1: 'text' is int, not a text"),
        ("in.jsonl", b'{"text"', "line 1: not JSON"),
        ("in.csv", b"id,body\n1,tea\n", "has no column 'text', only ['id', 'body']"),
        ("in.csv", b"", "has no column 'text', only []"),
        ("in.csv", b"id,text\n1,tea\n2\n", "line 3: 'text' is missing"),
        ("in.txt", b"tea\n\xff\n", "not UTF-8"),
        ("in.txt", b"", "no texts"),
        ("in.parquet", b"tea", "in.parquet: "),
        ("in.pdf", b"tea", "no texts are read from files of the kind .pdf; known: ['.csv', "),
    ],
)
def test_a_bad_file_is_told(fake: FakeTriton, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    result = _rose("embed", tmp_path / name, "-o", tmp_path / "out.npy", "--url", fake.url)
    assert result.exit_code == 1
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_bad_column_of_parquet_is_told(fake: FakeTriton, tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"text": ["tea", None]}), tmp_path / "in.parquet")
    gap = _rose("embed", tmp_path / "in.parquet", "--url", fake.url)
    assert "row 1: 'text' is missing" in gap.stderr
    absent = _rose("embed", tmp_path / "in.parquet", "--field", "body", "--url", fake.url)
    assert (absent.exit_code, "has no column 'body', only ['text']" in absent.stderr) == (1, True)


def test_arguments_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    _write_txt(tmp_path / "in.txt", ["tea"])
    for arguments, message in [
        (["missing.jsonl"], "missing.jsonl: no such file"),
        ([tmp_path / "in.txt", "tea"], "give one file and nothing else"),
        ([tmp_path / "in.txt", "-o", tmp_path / "out.bin"], "no vectors are written to files of the kind .bin"),
        ([tmp_path / "in.txt", "-o", tmp_path / "in.txt"], "is the file that is read"),
        ([tmp_path / "in.txt", "-o", tmp_path / "absent" / "out.npy"], "No such file"),
    ]:
        result = _rose("embed", *arguments, "--url", "127.0.0.1:1")
        assert result.exit_code == 1
        assert message in result.stderr


def test_a_failure_leaves_no_half_file(fake: FakeTriton, tmp_path: Path) -> None:
    def infer(call: Call) -> Any:
        if len(fake.calls) > 1:
            raise RefusalError(grpc.StatusCode.INTERNAL, "the engine failed")
        return _lengths(call)

    fake.infer = infer
    _write_txt(tmp_path / "in.txt", _TEXTS)
    for kind in ("npy", "parquet", "jsonl"):
        result = _rose("embed", tmp_path / "in.txt", "-o", tmp_path / f"out.{kind}", "--url", fake.url)
        assert result.exit_code == 1
        assert "the engine failed" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_txt(tmp_path / "in.txt", ["tea"])
    _write_parquet(tmp_path / "in.parquet", ["tea"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for arguments in (["in.txt", "-o", "out.parquet"], ["in.parquet", "-o", "out.npy"]):
        paths = [tmp_path / part if "." in part else part for part in arguments]
        result = _rose("embed", *paths, "--url", "127.0.0.1:1")
        assert result.exit_code == 1
        assert "pip install 'rose-on-triton[bulk]'" in result.stderr


def test_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Tea\n\n\nA pot\n  of tea.\n\nCups.")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("\n\nBoats.\n")
    (tmp_path / "c.pdf").write_text("no text")
    (tmp_path / "empty.txt").write_text("\n")
    found = [(entry.file.name, entry.line, entry.text) for entry in paragraphs(tmp_path)]
    assert found == [("b.md", 1, "# Tea"), ("b.md", 4, "A pot of tea."), ("b.md", 7, "Cups."), ("a.txt", 3, "Boats.")]


def test_a_folder_without_texts(fake: FakeTriton, tmp_path: Path) -> None:
    result = _rose("search", tmp_path, "tea", "--url", fake.url)
    assert (result.exit_code, "holds no text" in result.stderr) == (1, True)
