"""The three models of a pipeline, and how an instance knows its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from rose_backend.config import HeadConfig, Ranges, SpladeConfig, TokenHeads
from rose_backend.errors import InvalidArgumentError
from rose_ensemble import devices
from rose_ensemble.devices import parse_devices
from rose_ensemble.outputs import forms_offered
from rose_ensemble.pipeline import Pipeline, device_of_instance

_TENSORS = [
    "EMBEDDING", "EMBEDDING_INT8", "EMBEDDING_BINARY", "TOKEN_EMBEDDING", "TOKEN_EMBEDDING_LENGTHS", "SPARSE_INDEX",
    "SPARSE_WEIGHT", "SPARSE_LENGTHS",
]  # fmt: skip
_CHECKED_IN = Path(__file__).parents[2] / "model_repository"


def test_default_pipeline_is_what_is_checked_in() -> None:
    configs = Pipeline().configs()
    assert sorted(configs) == sorted(folder.name for folder in _CHECKED_IN.iterdir()) == ["embed", "rose", "tokenize"]
    for model, config in configs.items():
        assert (_CHECKED_IN / model / "config.pbtxt").read_bytes() == config.encode()


def test_model_names() -> None:
    pipeline = Pipeline("bge", "/models/bge")
    assert list(pipeline.configs()) == ["bge", "bge_tokenize", "bge_rose"]
    for name, config in pipeline.configs().items():
        assert f'name: "{name}"\n' in config
    ensemble = pipeline.configs()["bge"]
    assert 'model_name: "bge_tokenize"' in ensemble
    assert 'model_name: "bge_rose"' in ensemble


@pytest.mark.parametrize("model", ["bge_tokenize", "bge_rose"])
@pytest.mark.parametrize(
    ("checkpoint", "written"),
    [("/models/bge", "/models/bge"), ('/a "b"', r"/a \"b\""), ("/a\\b", r"/a\\b"), ("/a $name", "/a $name")],
)
def test_checkpoint_is_quoted(model: str, checkpoint: str, written: str) -> None:
    config = Pipeline("bge", checkpoint).configs()[model]
    assert f'parameters {{ key: "checkpoint" value {{ string_value: "{written}" }} }}' in config


def test_outputs_are_those_that_the_vectors_can_have() -> None:
    """Each named to the engine's model in every request, which is not free."""
    configs = Pipeline("m", outputs=("float", "sparse")).configs()
    for model in ("m", "m_rose"):
        assert [name for name in _TENSORS if f'{{ name: "{name}" ' in configs[model]] == [
            "EMBEDDING", "SPARSE_INDEX", "SPARSE_WEIGHT", "SPARSE_LENGTHS"
        ]  # fmt: skip
    assert [name for name in _TENSORS if f'output_map {{ key: "{name}" ' in configs["m"]] == [
        "EMBEDDING", "SPARSE_INDEX", "SPARSE_WEIGHT", "SPARSE_LENGTHS"
    ]  # fmt: skip


def test_forms_that_a_checkpoint_lacks_are_not_offered() -> None:
    ranges = Ranges(1, (0.0, 0.0), (1.0, 1.0))
    assert forms_offered(HeadConfig()) == ("float", "binary", "token")
    assert forms_offered(HeadConfig(tanh_codes=True)) == ("float", "int8", "binary", "token")
    assert forms_offered(HeadConfig(ranges=(ranges,))) == ("float", "int8", "binary", "token")
    assert forms_offered(HeadConfig(tokens=TokenHeads(Path("sparse.pt")))) == ("float", "binary", "sparse", "token")
    assert forms_offered(HeadConfig(splade=SpladeConfig())) == ("float", "binary", "sparse", "token")


def test_one_engine_per_device() -> None:
    config = Pipeline(devices=("cuda:0", "cuda:1", "cpu", "cuda:0")).configs()["rose"]
    for name in ("engine-0-cuda-0", "engine-1-cuda-1", "engine-2-cpu", "engine-3-cuda-0"):
        assert f'{{ name: "{name}" kind: KIND_MODEL count: 1 }}' in config


def test_number_of_tokenizers() -> None:
    assert "instance_group [ { kind: KIND_CPU count: 3 } ]" in Pipeline(tokenizers=3).configs()["tokenize"]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:17"])
@pytest.mark.parametrize("suffix", ["_0", ""])
def test_device_of_instance(device: str, suffix: str) -> None:
    """Triton appends the instance's number to its group's name."""
    config = Pipeline(devices=("cpu", device)).configs()["rose"]
    group = config.split('name: "engine-1', 1)[1].split('"', 1)[0]
    assert device_of_instance(f"engine-1{group}{suffix}") == device


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", ("auto",)),
        ("cpu", ("cpu",)),
        ("cuda", ("cuda",)),
        ("cuda:0,cuda:1", ("cuda:0", "cuda:1")),
        (" cuda:0 , cpu ", ("cuda:0", "cpu")),
        ("cuda:0,cuda:0", ("cuda:0", "cuda:0")),
    ],
)
def test_parse_devices(text: str, expected: tuple[str, ...]) -> None:
    assert parse_devices(text) == expected


@pytest.mark.parametrize("text", ["", "tpu", "cuda:", "cuda:x", "cuda:0,", "cpu:0", "cuda:-1", "CUDA:0"])
def test_parse_devices_names_what_is_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected auto, cpu or cuda:N"):
        parse_devices(text)


@pytest.mark.parametrize(("sees_gpu", "expected"), [(True, "cuda:0"), (False, "cpu")])
def test_auto_is_the_first_gpu_or_the_cpu(monkeypatch: pytest.MonkeyPatch, sees_gpu: bool, expected: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: sees_gpu)
    assert devices.resolve_device("auto") == expected
    assert devices.resolve_device("cuda:3") == "cuda:3"
