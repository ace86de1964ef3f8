"""The engine's adapter leaves nothing behind that only the garbage collector could free."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rose_backend.config import HeadConfig
from rose_backend.core import FLOAT, Output, Request, Results
from rose_ensemble.outputs import OutputRules
from rose_ensemble.work import NO_STAMP, Work

_ADAPTER = Path(__file__).parents[2] / "model_repository" / "rose" / "1" / "model.py"


class _Tensor:
    def __init__(self, name: str, values: Any) -> None:
        self.name, self.values = name, values

    def as_numpy(self) -> Any:
        return self.values


class _Sender:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, response: Any, flags: int) -> None:
        self.sent.append(response)

    def is_cancelled(self) -> bool:
        return False


class _Asked:
    """A request as the server's Python backend shows it."""

    def __init__(self, work: Any, parameters: str) -> None:
        self._work, self._parameters = work, parameters

    def parameters(self) -> str:
        return self._parameters

    def inputs(self) -> list[_Tensor]:
        return [_Tensor("WORK", self._work)]

    def timeout(self) -> int:
        return 5_000_000


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    utils: Any = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.MetricFamily = _Tensor, SimpleNamespace(COUNTER=0, GAUGE=1)
    utils.InferenceResponse = lambda tensors: tensors
    utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    spec = importlib.util.spec_from_file_location("rose_adapter", _ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapter = module.TritonPythonModel()
    matryoshka = SimpleNamespace(wanted=lambda dims: dims or 0)
    adapter._instance = SimpleNamespace(config=SimpleNamespace(score=None), matryoshka=matryoshka)
    adapter._outputs = OutputRules(HeadConfig(), 8)
    adapter._normalize, adapter._traced = True, None
    return adapter


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("{}", ["EMBEDDING"]),
        ('{"dimensions": 2, "lane": "bulk"}', ["EMBEDDING"]),
        ('{"outputs": "float,binary"}', ["EMBEDDING", "EMBEDDING_BINARY"]),
        ('{"outputs": "token"}', ["TOKEN_EMBEDDING", "TOKEN_EMBEDDING_LENGTHS"]),
    ],
)
def test_an_answered_request_is_freed_at_once(model: Any, parameters: str, names: list[str]) -> None:
    work = Work((1, 2), NO_STAMP, np.array([1, 2], np.int32), np.array([7, 8, 9], np.int32)).pack()
    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)
    results: Results = {FLOAT: vectors, Output.BINARY: np.ones((2, 1), np.uint8), Output.TOKEN: np.ones((3, 4), "f4")}

    def serve() -> _Sender:
        sender = _Sender()
        request: Request = model._read(_Asked(work, parameters), sender)
        request.reply(results)
        return sender

    serve()
    gc.collect()
    gc.disable()
    try:
        senders = [serve() for _ in range(10)]
        assert gc.collect() == 0
    finally:
        gc.enable()
    [tensors] = senders[0].sent
    assert [tensor.name for tensor in tensors] == names
    if names[0] == "EMBEDDING":
        wanted = vectors[:, :2] if "dimensions" in parameters else vectors
        np.testing.assert_array_equal(tensors[0].values, wanted[None])
