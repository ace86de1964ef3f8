"""The embedding contract as gRPC tensors: what both clients send and how they read the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from typing_extensions import TypedDict

from rose_client.chunking import Item
from rose_client.inference import Inference, Tensor, inference, output_arrays

OUTPUT_TENSORS = {
    "float": ("EMBEDDING",),
    "int8": ("EMBEDDING_INT8",),
    "binary": ("EMBEDDING_BINARY",),
    "sparse": ("SPARSE_LENGTHS", "SPARSE_INDEX", "SPARSE_WEIGHT"),
    "token": ("TOKEN_EMBEDDING_LENGTHS", "TOKEN_EMBEDDING"),
}
"""Tensors of an answer, by what the option `outputs` calls them; of tokens, how many each text has comes first."""
_COUNTS = "TOKEN_COUNT"
_DEFAULT_OUTPUTS = ("float",)

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
    renormalize: bool
    """Of fewer dimensions: scale what is left (the default), or the whole vector before the cut."""
    truncate: bool
    """Cut texts that are too long (the default), or have them refused."""
    truncation_direction: str
    """The side that is cut, `right` or `left`; by default the checkpoint's."""
    lane: str
    """`online` or `bulk`: where the request queues; by default as its size says."""
    traceparent: str
    """The W3C trace context the request belongs to."""
    tracestate: str
    """What goes with it."""
    outputs: Sequence[str]
    """The forms in which vectors are wanted, of `float` (the default), `int8`, `binary`, `sparse` and `token`."""
    late_chunking: bool
    """Of documents: pool each chunk among its document's tokens also where the checkpoint is not trained for it."""
    bit_order: str
    """Of `binary`: which bit of a byte the first of its elements is in, `msb` (the default) or `lsb`."""


@dataclass(frozen=True)
class SparseVector:
    """What a text's tokens weigh, those with a weight.

    Attributes:
        index: `[num_weights]` int32, token ids, ascending.
        weight: `[num_weights]` float32, positive.
    """

    index: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Embeddings:
    """Vectors of one call, in the order of its texts.

    Attributes:
        arrays: by the name of each output that was asked for, `[num_texts, ...]`; of tokens, a list of arrays.
        token_counts: `[num_texts]` int32, tokens that were run (after truncation).
    """

    arrays: Mapping[str, Any]
    token_counts: npt.NDArray[np.int32]

    @property
    def num_tokens(self) -> int:
        """Tokens that were run, of all texts."""
        return sum(self.token_counts.tolist())  # of a few, sooner than by numpy

    @property
    def vectors(self) -> npt.NDArray[np.float32]:
        """`[num_texts, dim]` float32.

        Raises:
            ValueError: `outputs` left `float` out; as for the other forms.
        """
        found: npt.NDArray[np.float32] = self._asked_for("float")
        return found

    @property
    def int8(self) -> npt.NDArray[np.int8]:
        """`[num_texts, dim]` int8."""
        found: npt.NDArray[np.int8] = self._asked_for("int8")
        return found

    @property
    def binary(self) -> npt.NDArray[np.uint8]:
        """`[num_texts, dim / 8]` uint8."""
        found: npt.NDArray[np.uint8] = self._asked_for("binary")
        return found

    @property
    def sparse(self) -> list[SparseVector]:
        """A sparse vector of each text."""
        found: list[SparseVector] = self._asked_for("sparse")
        return found

    @property
    def tokens(self) -> list[npt.NDArray[np.float32]]:
        """`[num_tokens, width]` float32 of each text."""
        found: list[npt.NDArray[np.float32]] = self._asked_for("token")
        return found

    def _asked_for(self, name: str) -> Any:
        if name not in self.arrays:
            raise ValueError(f"{name!r} is not among the outputs {list(self.arrays)} of this call")
        return self.arrays[name]


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


def wanted_outputs(options: EmbedOptions) -> tuple[str, ...]:
    """The names of the outputs that a call asks for.

    Raises:
        ValueError: one is not known, or there is none.
        TypeError: `outputs` is not a sequence of names.
    """
    if "outputs" not in options:
        return _DEFAULT_OUTPUTS
    outputs = options["outputs"]
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        kind = "single string" if isinstance(outputs, str) else type(outputs).__name__
        raise TypeError(f"outputs is a {kind}; pass a list of names")
    if not outputs or not all(name in OUTPUT_TENSORS for name in outputs):
        raise ValueError(f"outputs is {list(outputs)}; known: {list(OUTPUT_TENSORS)}")
    return tuple(outputs)


def similarity_options(options: EmbedOptions) -> EmbedOptions:
    """What vectors are asked for with, to be compared by cosine.

    Raises:
        ValueError: a choice that cosines leave none of.
    """
    for name in ("normalize", "outputs"):
        if name in options:
            raise ValueError(f"{name} cannot be chosen: similarities are the cosines of float vectors")
    return {**options, "normalize": True}


def encode_documents(documents: Sequence[Sequence[str]]) -> tuple[list[bytes], list[int]]:
    """All chunks of all documents in UTF-8, and how many there are of each.

    Raises:
        ValueError: no documents, or one without chunks.
        TypeError: a document is a string, or a chunk is something else.
    """
    for index, chunks in enumerate(documents):
        if isinstance(chunks, str):
            raise TypeError(f"documents[{index}] is a string; pass a list of its chunks")
        if len(chunks) == 0:
            raise ValueError(f"documents[{index}] is empty: a document needs at least one chunk")
    return encode_texts([chunk for chunks in documents for chunk in chunks]), [len(chunks) for chunks in documents]


def embedding_inference(
    model: str,
    texts: Sequence[Item],
    options: EmbedOptions,
    seconds: float,
    counts: Sequence[int] = (),
    request_id: str = "",
) -> Inference:
    """A call of the embedding contract; the texts travel as shape `[1, num_texts]`.

    Args:
        model: name of the ensemble.
        texts: in UTF-8, or as token ids.
        options: of the call.
        seconds: until the deadline.
        counts: how many of the texts form each document; empty: each is on its own.
        request_id: what the servers' logs call it.
    """
    inputs = [Tensor.of_texts("TEXT", texts)] if isinstance(texts[0], bytes) else _token_tensors(texts)
    if counts:
        inputs.append(Tensor.of_numbers("CHUNK_COUNTS", np.array(counts, np.int32)))
    outputs = wanted_outputs(options)
    parameters: Mapping[str, Any] = options
    if "outputs" in options:
        parameters = {**options, "outputs": ",".join(outputs)}
    return inference(model, inputs, parameters, seconds, request_id)


def read_embeddings(response: service_pb2.ModelInferResponse, options: EmbedOptions) -> Embeddings:
    """The answer's tensors, `[1, n, ...]` on the wire.

    Raises:
        RequestError: INTERNAL, an output that was asked for did not arrive.
    """
    outputs = wanted_outputs(options)
    *tensors, counts = output_arrays(response, _tensors_of(outputs))
    arrived = iter(tensors)
    arrays = {name: _read(name, [next(arrived) for _ in OUTPUT_TENSORS[name]]) for name in outputs}
    return Embeddings(arrays, counts.ravel())


def _tensors_of(outputs: Sequence[str]) -> list[str]:
    return [*chain.from_iterable([OUTPUT_TENSORS[output] for output in outputs]), _COUNTS]


def _read(name: str, tensors: Sequence[npt.NDArray[Any]]) -> Any:
    """Rows of vectors; of tokens, what belongs to each text, whose lengths come first."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1, tensors[0].shape[-1])
    stops = np.cumsum(tensors[0].ravel())[:-1]
    parts = [np.split(values[0], stops) for values in tensors[1:]]
    return parts[0] if name == "token" else [SparseVector(*pair) for pair in zip(*parts, strict=True)]


def join_embeddings(parts: Sequence[Embeddings]) -> Embeddings:
    """The answers of consecutive chunks as one; that of a single chunk is not copied."""
    if len(parts) == 1:
        return parts[0]
    return Embeddings(
        {name: _joined([part.arrays[name] for part in parts]) for name in parts[0].arrays},
        np.concatenate([part.token_counts for part in parts]),
    )


def _joined(parts: Sequence[Any]) -> Any:
    return [row for part in parts for row in part] if isinstance(parts[0], list) else np.concatenate(parts)


def part_embeddings(whole: Embeddings, counts: Sequence[int]) -> list[Embeddings]:
    """The answer of a call as those of its documents, of so many consecutive texts each; nothing is copied."""
    stops = np.cumsum(counts)[:-1]
    parts = {name: np.split(values, stops) for name, values in whole.arrays.items()}
    return [
        Embeddings({name: rows[index] for name, rows in parts.items()}, token_counts)
        for index, token_counts in enumerate(np.split(whole.token_counts, stops))
    ]


def _token_tensors(sequences: Sequence[Item]) -> list[Tensor]:
    ids = np.concatenate([np.asarray(sequence, np.int32) for sequence in sequences])
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    return [Tensor.of_numbers("TOKEN_IDS", ids), Tensor.of_numbers("TOKEN_LENGTHS", lengths)]
