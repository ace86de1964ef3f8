"""A gRPC server that speaks Triton's protocol and answers as a test says, for what a real one does rarely."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

_DTYPES = {"FP32": np.float32, "INT32": np.int32, "INT8": np.int8, "UINT8": np.uint8}
EMBED = (("TEXT",), ("EMBEDDING", "TOKEN_COUNT"))
QUANTIZED = (("TEXT",), ("EMBEDDING", "TOKEN_COUNT", "EMBEDDING_INT8", "EMBEDDING_BINARY"))
SCORE = (("QUERY", "DOCUMENT"), ("SCORE", "LOGIT", "TOKEN_COUNT"))


class RefusalError(Exception):
    """What an `infer` raises to have a request refused."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Call:
    """A request as it came.

    Attributes:
        model: its name.
        request_id: Triton's.
        inputs: elements by tensor: bytes, or integers.
        parameters: by name.
        is_wanted: whether its sender still waits.
        seconds: until the deadline of gRPC.
    """

    model: str
    request_id: str
    inputs: Mapping[str, Sequence[Any]]
    parameters: Mapping[str, Any]
    is_wanted: Callable[[], bool]
    seconds: float


Infer = Callable[[Call], Mapping[str, npt.NDArray[Any]]]


@dataclass
class FakeTriton:
    """A running server.

    Attributes:
        infer: outputs by name for a call; may be replaced at any time.
        models: names of inputs and outputs by model.
        calls: whatever came, in order.
        port: where it listens.
        engines: instances of its ensembles' last step.
    """

    infer: Infer
    models: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    calls: list[Call] = field(default_factory=list)
    port: int = 0
    engines: int = 1

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_until_unwanted(self, call: Call, seconds: float = 30.0) -> bool:
        deadline = time.monotonic() + seconds
        while call.is_wanted() and time.monotonic() < deadline:
            time.sleep(0.01)
        return not call.is_wanted()


def embeddings(call: Call, dim: int = 8) -> dict[str, npt.NDArray[Any]]:
    """Unit vectors that point where the first byte of a text says, and one token a text."""
    vectors = np.zeros((len(call.inputs["TEXT"]), dim), np.float32)
    for row, text in enumerate(call.inputs["TEXT"]):
        vectors[row, (text[0] if text else 0) % dim] = 1
    return {"EMBEDDING": vectors[None], "TOKEN_COUNT": np.ones((1, len(vectors)), np.int32)}


@contextmanager
def fake_triton(
    infer: Infer = embeddings, models: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None
) -> Iterator[FakeTriton]:
    """Serve on a free port of 127.0.0.1."""
    fake = FakeTriton(infer, models or {"embed": EMBED})
    server = grpc.server(ThreadPoolExecutor(32))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(fake), server)
    fake.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield fake
    finally:
        server.stop(None).wait()


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, fake: FakeTriton) -> None:
        self._fake = fake
        self._lock = threading.Lock()

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol's name)
        response = service_pb2.RepositoryIndexResponse()
        for name in self._fake.models:
            response.models.add(name=name, version="1", state="READY")
        return response

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        inputs, outputs = self._fake.models[request.name]
        response = service_pb2.ModelMetadataResponse(name=request.name)
        for name in inputs:
            response.inputs.add(name=name, datatype="BYTES", shape=[-1, -1])
        for name in outputs:
            response.outputs.add(name=name, datatype="FP32", shape=[-1, -1])
        return response

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        config = model_config_pb2.ModelConfig(name=request.name)
        if request.name in self._fake.models:
            for name in ("tokenize", "rose"):
                config.ensemble_scheduling.step.add(model_name=name)
        elif request.name == "rose":
            for _ in range(self._fake.engines):
                config.instance_group.add(count=1)
        else:
            config.instance_group.add(count=4)
        return service_pb2.ModelConfigResponse(config=config)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        inputs = {
            tensor.name: _elements(tensor.datatype, content)
            for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
        }
        call = Call(request.model_name, request.id, inputs, parameters, context.is_active, context.time_remaining())
        with self._lock:
            self._fake.calls.append(call)
        try:
            outputs = self._fake.infer(call)
        except RefusalError as refusal:
            context.abort(refusal.code, refusal.message)
        response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        wanted = [output.name for output in request.outputs]
        for name, array in outputs.items():
            if not wanted or name in wanted:
                datatype = next(key for key, dtype in _DTYPES.items() if dtype == array.dtype)
                entry = response.outputs.add(name=name, datatype=datatype)
                entry.shape.extend(array.shape)
                response.raw_output_contents.append(array.tobytes())
        return response


def _elements(datatype: str, content: bytes) -> Sequence[Any]:
    if datatype != "BYTES":
        return np.frombuffer(content, _DTYPES[datatype]).tolist()
    elements, place = [], 0
    while place < len(content):
        size = int.from_bytes(content[place : place + 4], "little")
        elements.append(content[place + 4 : place + 4 + size])
        place += 4 + size
    return elements
