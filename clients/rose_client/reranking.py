"""The scoring contract as gRPC tensors, and documents in the order of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from typing_extensions import TypedDict

from rose_client.chunking import Item
from rose_client.inference import Inference, Tensor, inference, output_arrays

_OUTPUTS = ("SCORE", "LOGIT", "TOKEN_COUNT")


class TruncationOptions(TypedDict, total=False):
    """What any call may ask for; anything left out is the checkpoint's own choice."""

    truncate: bool
    """Cut pairs that are too long (the default), or have them refused."""
    truncation_direction: str
    """The side of a text that is cut, `right` or `left`; by default the checkpoint's."""
    lane: str
    """`online` or `bulk`: where the request queues; by default as its size says."""
    traceparent: str
    """The W3C trace context the request belongs to."""
    tracestate: str
    """What goes with it."""


class RerankOptions(TruncationOptions, total=False):
    """What a call that scores may ask for besides."""

    instruction: str
    """What counts as relevant, for rerankers that are told so."""
    raw_scores: bool
    """Scores that are the logits, whatever the checkpoint makes of those."""


@dataclass(frozen=True)
class Scores:
    """Of one call, in the order of the documents.

    Attributes:
        scores: `[num_documents]` float32, as the checkpoint's authors meant them, e.g. between 0 and 1.
        logits: `[num_documents]` float32, what they are made of. Rank by these: even if they differ, scores may not.
        token_counts: `[num_documents]` int32, tokens that were run for each pair (after truncation).
    """

    scores: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]
    token_counts: npt.NDArray[np.int32]


@dataclass(frozen=True)
class RankedDocument:
    """One document of a ranking.

    Attributes:
        index: its place among the documents of the call.
        score: as the checkpoint's authors meant it.
        logit: what it is made of.
    """

    index: int
    score: float
    logit: float


def encode_query(query: str) -> bytes:
    """The query in UTF-8.

    Raises:
        TypeError: it is not a string.
    """
    if not isinstance(query, str):
        raise TypeError(f"query is a {type(query).__name__}, not a string")
    return query.encode()


def rerank_options(instruction: str | None, others: TruncationOptions, *, raw_scores: bool) -> RerankOptions:
    """What was asked for, as one."""
    asked = cast("RerankOptions", dict(others))
    if instruction is not None:
        asked["instruction"] = instruction
    if raw_scores:
        asked["raw_scores"] = True
    return asked


def check_top_n(top_n: int | None) -> None:
    """Refuse a number of documents that cannot be meant.

    Raises:
        ValueError: it is not a whole number from 1 up.
    """
    if top_n is not None and (not isinstance(top_n, int) or isinstance(top_n, bool) or top_n < 1):
        raise ValueError(f"top_n is {top_n!r}: ask for at least 1 document, or leave it out for all")


def ranked(scores: Scores, top_n: int | None = None) -> list[RankedDocument]:
    """Documents by falling logit, equal ones in their own order; the first `top_n`, or all."""
    order = np.argsort(-scores.logits, kind="stable")[:top_n]
    return [RankedDocument(int(i), float(scores.scores[i]), float(scores.logits[i])) for i in order]


def join_scores(parts: Sequence[Scores]) -> Scores:
    """The answers of consecutive chunks as one."""
    return Scores(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.token_counts for part in parts]),
    )


def score_inference(
    model: str,
    query: bytes,
    documents: Sequence[Item],
    options: Mapping[str, Any],
    seconds: float,
    request_id: str = "",
) -> Inference:
    """A call of the scoring contract.

    Args:
        model: name of the ensemble.
        query: in UTF-8.
        documents: in UTF-8.
        options: of the call.
        seconds: until the deadline.
        request_id: what the servers' logs call it.
    """
    inputs = [Tensor.of_texts("QUERY", [query]), Tensor.of_texts("DOCUMENT", documents)]
    return inference(model, inputs, options, seconds, request_id)


def read_scores(response: service_pb2.ModelInferResponse) -> Scores:
    """The answer's tensors, `[1, num_documents]` on the wire.

    Raises:
        RequestError: INTERNAL, one did not arrive.
    """
    scores, logits, counts = (array.ravel() for array in output_arrays(response, _OUTPUTS))
    return Scores(scores, logits, counts)
