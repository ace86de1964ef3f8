"""Triton's inference calls as messages of its protocol, built without tritonclient's objects in between.

Those take several times as long as the message itself, which a short request feels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from rose_client.errors import RequestError

_DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "INT32": np.dtype("<i4"),
    "INT8": np.dtype("i1"),
    "UINT8": np.dtype("u1"),
}


_RESERVED = frozenset({"priority", "sequence_end", "sequence_id", "sequence_start", "timeout"})


class Tensor(NamedTuple):
    """An input of shape `[1, size]`.

    Attributes:
        name: of the input.
        datatype: as Triton calls it.
        size: elements.
        content: their bytes, as they travel.
    """

    name: str
    datatype: str
    size: int
    content: bytes

    @classmethod
    def of_texts(cls, name: str, texts: Sequence[Any]) -> Tensor:
        """Texts in UTF-8: each travels behind its length."""
        parts = [part for text in texts for part in (len(text).to_bytes(4, "little"), text)]
        return cls(name, "BYTES", len(texts), b"".join(parts))

    @classmethod
    def of_numbers(cls, name: str, numbers: npt.NDArray[np.int32]) -> Tensor:
        """Numbers `[size]`."""
        return cls(name, "INT32", len(numbers), numbers.astype("<i4", copy=False).tobytes())


class Inference(NamedTuple):
    """A call that is ready to be sent.

    Attributes:
        request: the message.
        seconds: until the deadline, which gRPC keeps on this side.
        metadata: headers of the call.
    """

    request: service_pb2.ModelInferRequest
    seconds: float
    metadata: tuple[tuple[str, str], ...]


def inference(
    model: str,
    inputs: Sequence[Tensor],
    parameters: Mapping[str, Any],
    seconds: float,
    request_id: str = "",
) -> Inference:
    """A call of a model, whose outputs are not named: the server sends those there are, and names cost it work.

    The server is told the time that is left as well, so that whoever has the work queued there may drop what nobody
    waits for any more.

    Args:
        model: its name.
        inputs: what it takes.
        parameters: of the request: strings, booleans, integers and floats. A trace context among them is handed on as
            metadata too, where Triton's own tracing looks for it.
        seconds: until the deadline.
        request_id: what the servers' logs call it.

    Raises:
        ValueError: a parameter whose name Triton keeps for itself.
        TypeError: a parameter of another type.
    """
    if reserved := _RESERVED.intersection(parameters):
        raise ValueError(f"{', '.join(sorted(reserved))}: Triton's own, no option of a request")
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=(1, tensor.size))
        request.raw_input_contents.append(tensor.content)
    told = request.parameters
    told["timeout"].int64_param = max(1, int(seconds * 1e6))  # microseconds; 0 would mean none
    for name, value in parameters.items():
        if isinstance(value, str):
            told[name].string_param = value
        elif isinstance(value, bool):
            told[name].bool_param = value
        elif isinstance(value, int):
            told[name].int64_param = value
        elif isinstance(value, float):
            told[name].double_param = value
        else:
            raise TypeError(f"{name} is a {type(value).__name__}: options are strings, booleans and numbers")
    return Inference(request, seconds, _trace_metadata(parameters))


def _trace_metadata(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A sampled trace context.

    Triton records whatever carries a context, so one that is not sampled is left out: its last digit is even.
    """
    parent = parameters.get("traceparent")
    if not parent or parent[-1] not in "13579bdf":
        return ()
    return tuple((name, parameters[name]) for name in ("traceparent", "tracestate") if name in parameters)


def output_arrays(response: service_pb2.ModelInferResponse, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """The tensors of an answer by these names, views of its bytes.

    Raises:
        RequestError: INTERNAL, one did not arrive whole, or is of a type that no output of ours has.
    """
    contents = response.raw_output_contents
    arrived = {output.name: index for index, output in enumerate(response.outputs)}
    arrays = []
    for name in names:
        if name not in arrived:
            raise RequestError("INTERNAL", f"the server's answer lacks {name}")
        index = arrived[name]
        output = response.outputs[index]
        dtype = _DTYPES.get(output.datatype)
        if dtype is None:
            raise RequestError("INTERNAL", f"the server's answer has {name} as {output.datatype}")
        try:
            arrays.append(np.frombuffer(contents[index], dtype).reshape(output.shape))
        except (IndexError, ValueError) as cause:
            raise RequestError("INTERNAL", f"the server's answer does not hold all of {name}: {cause}") from cause
    return arrays
