"""The embedding contract as gRPC tensors: what both clients send and how they read the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
from typing_extensions import TypedDict

from rose_client.chunking import Item
from rose_client.errors import RequestError

_COUNTS = "TOKEN_COUNT"
_DEFAULT_OUTPUT = "float"
OUTPUT_TENSORS = {_DEFAULT_OUTPUT: "EMBEDDING", "int8": "EMBEDDING_INT8", "binary": "EMBEDDING_BINARY"}
"""Tensors of an answer, by what the option `outputs` calls them."""

# gRPC's own waits between connection attempts grow to two minutes: a server that came back would not be noticed.
CHANNEL_ARGUMENTS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class EmbedOptions(TypedDict, total=False):
    """What a call may ask for; anything left out is the checkpoint's own choice."""

    prompt_name: str
    """One of the checkpoint's prompts, put in front of every text."""
    prompt: str
    """A literal text to put in front instead."""
    input_type: str
    """`query` or `document`: the checkpoint's prompt for it, if it has one."""
    dimensions: int
    """How many leading elements of each vector are wanted, where the checkpoint is trained to be cut."""
    normalize: bool
    """Scale vectors to unit length, or not."""
    truncate: bool
    """Cut texts that are too long (the default), or have them refused."""
    truncation_direction: str
    """The side that is cut, `right` (the default) or `left`."""
    outputs: str
    """A comma list of `float` (the default), `int8` and `binary`, where the server offers them."""
    lane: str
    """`online` or `bulk`: where the request queues; by default as its size says."""
    traceparent: str
    """The W3C trace context the request belongs to."""
    tracestate: str
    """What goes with it."""


@dataclass(frozen=True)
class Embeddings:
    """Vectors of one call.

    Attributes:
        vectors: `[num_texts, dim]` float32, in the order of the texts; `[num_texts, 0]` where only others were asked.
        token_counts: `[num_texts]` int32, tokens that were run (after truncation).
        int8: `[num_texts, dim]` int8, where asked for.
        binary: `[num_texts, dim / 8]` uint8 of packed bits, where asked for.
    """

    vectors: npt.NDArray[np.float32]
    token_counts: npt.NDArray[np.int32]
    int8: npt.NDArray[np.int8] | None = None
    binary: npt.NDArray[np.uint8] | None = None


def server_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """One `host:port` or several, as several."""
    return (urls,) if isinstance(urls, str) else tuple(urls)


def encode_texts(texts: Sequence[str], name: str = "texts") -> list[bytes]:
    """The texts in UTF-8; messages call them by their name.

    Raises:
        ValueError: no texts.
        TypeError: `texts` is one string instead of a sequence of them, or holds something else.
    """
    if isinstance(texts, str):
        raise TypeError(f"{name} is a single string; pass a list of strings")
    if len(texts) == 0:
        raise ValueError(f"{name} is empty: a request needs at least one text")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is a {type(text).__name__}, not a string")
    return [text.encode() for text in texts]


def infer_arguments(model: str, texts: Sequence[Item], options: EmbedOptions, seconds: float) -> dict[str, Any]:
    """Keyword arguments of tritonclient's `infer`; the texts travel as shape `[1, num_texts]`.

    Args:
        model: name of the ensemble.
        texts: in UTF-8, or as token ids.
        options: of the call.
        seconds: until the deadline. gRPC keeps it on this side; the server is told as well, so that whoever has
            the work queued there may drop what nobody waits for any more.
    """
    tensors = [text_tensor("TEXT", texts)] if isinstance(texts[0], bytes) else _token_tensors(texts)
    outputs = [OUTPUT_TENSORS[name] for name in _wanted(options)]
    return {
        "model_name": model,
        "inputs": tensors,
        "outputs": [grpcclient.InferRequestedOutput(name) for name in (*outputs, _COUNTS)],
        "parameters": dict(options),
        **time_arguments(seconds),
    }


def time_arguments(seconds: float) -> dict[str, Any]:
    """How `infer` is told what is left until the deadline."""
    return {
        "client_timeout": seconds,
        "timeout": max(1, int(seconds * 1e6)),  # microseconds; 0 would mean none
    }


def text_tensor(name: str, texts: Sequence[Item]) -> grpcclient.InferInput:
    """A BYTES input of shape `[1, num_texts]`."""
    array = np.array([texts], dtype=np.object_)
    tensor = grpcclient.InferInput(name, list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def read_embeddings(result: grpcclient.InferResult, options: EmbedOptions | None = None) -> Embeddings:
    """The answer's tensors, `[1, n, ...]` on the wire.

    Raises:
        RequestError: INTERNAL, an output that was asked for is missing.
    """
    counts = _tensor(result, _COUNTS).ravel()
    found = {}
    for name in _wanted(options or {}):
        array = _tensor(result, OUTPUT_TENSORS[name])
        found[name] = array.reshape(-1, array.shape[-1])
    vectors = found.pop(_DEFAULT_OUTPUT, None)
    return Embeddings(np.empty((counts.size, 0), np.float32) if vectors is None else vectors, counts, **found)


def join_embeddings(parts: Sequence[Embeddings]) -> Embeddings:
    """The answers of consecutive chunks as one; that of a single chunk is not copied."""
    if len(parts) == 1:
        return parts[0]
    return Embeddings(
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.token_counts for part in parts]),
        _joined([part.int8 for part in parts if part.int8 is not None]),
        _joined([part.binary for part in parts if part.binary is not None]),
    )


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    return np.concatenate(parts) if parts else None


def _wanted(options: EmbedOptions) -> list[str]:
    return options.get("outputs", _DEFAULT_OUTPUT).split(",")


def _tensor(result: grpcclient.InferResult, name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] | None = result.as_numpy(name)
    if array is None:
        raise RequestError("INTERNAL", f"the answer has no {name}, though it was asked for")
    return array


def _token_tensors(sequences: Sequence[Item]) -> list[grpcclient.InferInput]:
    arrays = {
        "TOKEN_IDS": np.concatenate([np.asarray(sequence, np.int32) for sequence in sequences])[None],
        "TOKEN_LENGTHS": np.array([[len(sequence) for sequence in sequences]], np.int32),
    }
    tensors = []
    for name, array in arrays.items():
        tensor = grpcclient.InferInput(name, list(array.shape), "INT32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors
