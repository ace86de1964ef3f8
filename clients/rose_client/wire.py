"""The embedding contract as gRPC tensors: what both clients send and how they read the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
from typing_extensions import TypedDict

_OUTPUTS = ("EMBEDDING", "TOKEN_COUNT")

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
    lane: str
    """`online` or `bulk`: where the request queues; by default as its size says."""


@dataclass(frozen=True)
class Embeddings:
    """Vectors of one call.

    Attributes:
        vectors: `[num_texts, dim]` float32, in the order of the texts.
        token_counts: `[num_texts]` int32, tokens that were run (after truncation).
    """

    vectors: npt.NDArray[np.float32]
    token_counts: npt.NDArray[np.int32]


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


def infer_arguments(model: str, texts: Sequence[bytes], options: EmbedOptions, seconds: float) -> dict[str, Any]:
    """Keyword arguments of tritonclient's `infer`; the texts travel as shape `[1, num_texts]`.

    Args:
        model: name of the ensemble.
        texts: in UTF-8.
        options: of the call.
        seconds: until the deadline. gRPC keeps it on this side; the server is told as well, so that whoever has
            the work queued there may drop what nobody waits for any more.
    """
    array = np.array([texts], dtype=np.object_)
    tensor = grpcclient.InferInput("TEXT", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return {
        "model_name": model,
        "inputs": [tensor],
        "outputs": [grpcclient.InferRequestedOutput(name) for name in _OUTPUTS],
        "parameters": dict(options),
        "client_timeout": seconds,
        "timeout": max(1, int(seconds * 1e6)),  # microseconds; 0 would mean none
    }


def read_embeddings(result: grpcclient.InferResult) -> Embeddings:
    """The answer's tensors, `[1, n, ...]` on the wire."""
    vectors, counts = (result.as_numpy(name) for name in _OUTPUTS)
    return Embeddings(vectors.reshape(-1, vectors.shape[-1]), counts.ravel())


def join_embeddings(parts: Sequence[Embeddings]) -> Embeddings:
    """The answers of consecutive chunks as one; that of a single chunk is not copied."""
    if len(parts) == 1:
        return parts[0]
    return Embeddings(
        np.concatenate([part.vectors for part in parts]), np.concatenate([part.token_counts for part in parts])
    )
