"""Requests on the wire, below the product's own client: well-formed ones, and ones no client would send."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2, service_pb2_grpc

Parameter = bool | int | float | str


@dataclass(frozen=True)
class Answer:
    """What an embedding ensemble returned.

    Attributes:
        vectors: `[b, n, dim]`.
        counts: `[b, n]`.
    """

    vectors: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """`[b * n, dim]`."""
        return self.vectors.reshape(-1, self.vectors.shape[-1])

    @classmethod
    def of(cls, result: Any) -> Answer:
        """From either tritonclient's result object."""
        return cls(result.as_numpy("EMBEDDING"), result.as_numpy("TOKEN_COUNT"))


@dataclass(frozen=True)
class Tensor:
    """One input as bytes, whether or not they fit its shape."""

    name: str
    datatype: str
    shape: Sequence[int]
    content: bytes


def text_array(texts: Sequence[str | bytes], shape: Sequence[int] | None = None) -> npt.NDArray[np.object_]:
    """UTF-8 elements in the given shape, by default `[1, n]`."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return np.array(encoded, np.object_).reshape(shape or (1, len(texts)))


def text_input(module: Any, texts: Sequence[str | bytes], shape: Sequence[int] | None = None, **how: bool) -> Any:
    """The input TEXT for `tritonclient.grpc` or `tritonclient.http`."""
    array = text_array(texts, shape)
    tensor = module.InferInput("TEXT", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array, **how)
    return tensor


def token_inputs(module: Any, sequences: Sequence[Sequence[int]]) -> list[Any]:
    """The inputs TOKEN_IDS and TOKEN_LENGTHS."""
    arrays = {
        "TOKEN_IDS": np.array([[token for sequence in sequences for token in sequence]], np.int32),
        "TOKEN_LENGTHS": np.array([[len(sequence) for sequence in sequences]], np.int32),
    }
    inputs = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), "INT32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def embed(
    client: grpcclient.InferenceServerClient,
    texts: Sequence[str | bytes],
    shape: Sequence[int] | None = None,
    **parameters: Parameter,
) -> Answer:
    """Embed over unary gRPC."""
    return Answer.of(client.infer("embed", [text_input(grpcclient, texts, shape)], parameters=parameters))


def text_tensor(texts: Sequence[str | bytes], shape: Sequence[int]) -> Tensor:
    """TEXT with a shape that need not fit the number of texts."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return Tensor("TEXT", "BYTES", shape, b"".join(struct.pack("<I", len(item)) + item for item in encoded))


def int_tensor(name: str, values: Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """An INT32 input, by default `[1, n]`."""
    return Tensor(name, "INT32", shape or (1, len(values)), np.array(values, np.int32).tobytes())


class RawGrpc:
    """Sends a ModelInfer message as it stands; a context manager.

    Args:
        url: `host:port`.
    """

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(
            url, [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def infer(
        self, tensors: Sequence[Tensor], model: str = "embed", parameters: Mapping[str, Parameter] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Outputs by name; raises `grpc.RpcError` as the server answered."""
        request = service_pb2.ModelInferRequest(model_name=model)
        for tensor in tensors:
            entry = request.inputs.add(name=tensor.name, datatype=tensor.datatype)
            entry.shape.extend(tensor.shape)
            request.raw_input_contents.append(tensor.content)
        for name, value in (parameters or {}).items():
            field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
            setattr(request.parameters[name], field, value)
        response = self._stub.ModelInfer(request, timeout=60)
        dtypes = {"FP32": np.float32, "INT32": np.int32}
        return {
            output.name: np.frombuffer(content, dtypes[output.datatype]).reshape(output.shape)
            for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
        }

    def refusal(
        self, tensors: Sequence[Tensor], model: str = "embed", parameters: Mapping[str, Parameter] | None = None
    ) -> str:
        """The message of a request that must be refused as the sender's fault."""
        with pytest.raises(grpc.RpcError) as refused:
            self.infer(tensors, model, parameters)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
        return str(refused.value.details())

    def __enter__(self) -> RawGrpc:
        return self

    def __exit__(self, *exception: object) -> None:
        self._channel.close()


class RawHttp:
    """Posts JSON, or bytes that pretend to be, to a server.

    The content type is always set: what libraries put there otherwise, a form, Triton 24.10 parses as one, and
    4 MiB of it end the server (Yellow-Camper/libevhtp#118).

    Args:
        url: `host:port`.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Status and parsed body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        content_type = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self._url}{path}", data, {**content_type, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)

    def infer_binary(
        self, tensors: Sequence[Tensor], parameters: Mapping[str, Parameter] | None = None
    ) -> tuple[int, Any]:
        """The inputs in Triton's binary form, behind a JSON header."""
        inputs = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(tensor.content)},
            }
            for tensor in tensors
        ]
        header = json.dumps({"inputs": inputs, "parameters": parameters or {}}).encode()
        body = header + b"".join(tensor.content for tensor in tensors)
        headers = {"Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream"}
        return self.post("/v2/models/embed/infer", body, headers)

    def infer(self, data: Any, shape: Sequence[int], datatype: str = "BYTES", **parameters: Any) -> tuple[int, Any]:
        """A JSON infer request with TEXT alone."""
        body: dict[str, Any] = {"inputs": [{"name": "TEXT", "datatype": datatype, "shape": shape, "data": data}]}
        if parameters:
            body["parameters"] = parameters
        return self.post("/v2/models/embed/infer", body)

    def generate(self, **fields: Any) -> tuple[int, Any]:
        """Triton's generate extension: inputs and parameters as plain JSON fields."""
        return self.post("/v2/models/embed/generate", fields)
