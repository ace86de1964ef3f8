"""Servers as load tests see them: texts in, number of tokens out. For processes that gevent has patched."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import grpc
import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from geventhttpclient import HTTPClient
from tritonclient.utils import InferenceServerException

_EMBEDDING, _SCORE, _COUNTS = "EMBEDDING", "SCORE", "TOKEN_COUNT"
_REFUSALS = frozenset({"StatusCode.UNAVAILABLE", "StatusCode.RESOURCE_EXHAUSTED", "429", "503"})
_NOBODY_THERE = ("failed to connect", "Connection reset", "Socket closed")  # gRPC calls these UNAVAILABLE as well


class AnswerError(Exception):
    """The server's answer was an error, or not what was asked for."""


class RefusedError(AnswerError):
    """The server said that it is too busy."""


class Endpoint(Protocol):
    """A server; used by many greenlets at once."""

    def close(self) -> None:
        """Give its connections up."""


class Embeds(Endpoint, Protocol):
    """One with an embedding model."""

    def embed(self, texts: Sequence[str]) -> int:
        """Embed; the number of tokens that the server says it ran.

        Raises:
            AnswerError: it did not answer, or not with a vector for every text.
        """


class Scores(Endpoint, Protocol):
    """One that scores documents."""

    def score(self, query: str, documents: Sequence[str]) -> int:
        """Score; the number of tokens that the server says it ran.

        Raises:
            AnswerError: it did not answer, or not with a score for every document.
        """


class TritonGrpc:
    """An ensemble over gRPC; the model says whether it embeds or scores.

    Args:
        address: `host:port`.
        model: the ensemble.
        timeout: of a call, in seconds.
    """

    def __init__(self, address: str, model: str, timeout: float) -> None:
        self._client = grpcclient.InferenceServerClient(address)
        self._model = model
        self._timeout = timeout

    def embed(self, texts: Sequence[str]) -> int:
        """See `Embeds`."""
        return _checked(self._infer(_EMBEDDING, TEXT=texts), _EMBEDDING, len(texts))

    def score(self, query: str, documents: Sequence[str]) -> int:
        """See `Scores`."""
        return _checked(self._infer(_SCORE, QUERY=[query], DOCUMENT=documents), _SCORE, len(documents))

    def _infer(self, output: str, **inputs: Sequence[str]) -> Any:
        tensors = [_filled(grpcclient.InferInput, name, texts) for name, texts in inputs.items()]
        wanted = [grpcclient.InferRequestedOutput(name) for name in (output, _COUNTS)]
        try:
            return self._client.infer(
                self._model, tensors, outputs=wanted, client_timeout=self._timeout, timeout=_microseconds(self._timeout)
            )
        except InferenceServerException as error:
            raise _classified(error.status(), error.message()) from error
        except grpc.RpcError as error:
            raise _classified(str(error.code()), error.details()) from error

    def close(self) -> None:
        """See `Endpoint`.

        The client closes itself as it goes. Closed before that, it does so twice, and gRPC, which under gevent counts
        channels, then waits for ever for one that is not there: a load test in eight did not end.
        """
        del self._client


class TritonHttp:
    """An ensemble over HTTP, tensors in binary.

    Args:
        address: `host:port`.
        model: the ensemble.
        timeout: of a call, in seconds.
        connections: at most.
    """

    def __init__(self, address: str, model: str, timeout: float, connections: int) -> None:
        self._client = httpclient.InferenceServerClient(
            address, concurrency=connections, connection_timeout=timeout, network_timeout=timeout
        )
        self._model = model
        self._timeout = timeout

    def embed(self, texts: Sequence[str]) -> int:
        """See `Embeds`."""
        return _checked(self._infer(_EMBEDDING, TEXT=texts), _EMBEDDING, len(texts))

    def score(self, query: str, documents: Sequence[str]) -> int:
        """See `Scores`."""
        return _checked(self._infer(_SCORE, QUERY=[query], DOCUMENT=documents), _SCORE, len(documents))

    def _infer(self, output: str, **inputs: Sequence[str]) -> Any:
        tensors = [_filled(httpclient.InferInput, name, texts) for name, texts in inputs.items()]
        wanted = [httpclient.InferRequestedOutput(name, binary_data=True) for name in (output, _COUNTS)]
        try:
            return self._client.infer(self._model, tensors, outputs=wanted, timeout=_microseconds(self._timeout))
        except InferenceServerException as error:
            raise _classified(error.status(), error.message()) from error
        except OSError as error:
            raise AnswerError(f"no answer: {error}") from error

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()


class JsonRoute:
    """A route that takes and gives JSON: `/v1/embeddings` or `/v1/rerank` of a gateway, TEI, Infinity or vLLM.

    Args:
        url: of the route.
        model: its name there.
        timeout: of a call, in seconds.
        connections: at most.
    """

    def __init__(self, url: str, model: str, timeout: float, connections: int) -> None:
        self._client = HTTPClient.from_url(
            url, concurrency=connections, connection_timeout=timeout, network_timeout=timeout
        )
        self._path = urlsplit(url).path
        self._model = model

    def embed(self, texts: Sequence[str]) -> int:
        """See `Embeds`."""
        return self._post("data", "prompt_tokens", len(texts), input=list(texts), encoding_format="base64")

    def score(self, query: str, documents: Sequence[str]) -> int:
        """See `Scores`."""
        return self._post("results", "total_tokens", len(documents), query=query, documents=list(documents))

    def _post(self, rows: str, usage: str, count: int, **fields: Any) -> int:
        body = json.dumps({"model": self._model, **fields})
        try:
            answer = self._client.post(self._path, body=body, headers={"Content-Type": "application/json"})
            content = answer.read()
        except OSError as error:
            raise AnswerError(f"no answer: {error}") from error
        if answer.status_code != 200:
            raise _classified(str(answer.status_code), content[:300].decode(errors="replace"))
        try:
            found = json.loads(content)
            num_rows, tokens = len(found[rows]), int(found["usage"][usage])
        except (ValueError, KeyError, TypeError) as error:
            raise AnswerError(f"not an answer of {self._path}: {content[:300]!r}") from error
        if num_rows != count:
            raise AnswerError(f"{num_rows} {rows} for {count} texts")
        return tokens

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()


def _microseconds(seconds: float) -> int:
    """What the server is told: a request that nobody waits for any more must not hold up the next ones, or trials."""
    return int(seconds * 1e6)


def _filled(make: Callable[[str, list[int], str], Any], name: str, texts: Sequence[str]) -> Any:
    tensor = make(name, [1, len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode() for text in texts]], dtype=np.object_))
    return tensor


def _checked(result: Any, output: str, num_texts: int) -> int:
    values, counts = result.as_numpy(output), result.as_numpy(_COUNTS)
    if values is None or counts is None or values.shape[1] != num_texts:
        raise AnswerError(f"{output} has not a row for each of {num_texts} texts")
    return int(counts.sum())


def _classified(status: str | None, message: str | None) -> AnswerError:
    lost = any(words in (message or "") for words in _NOBODY_THERE)
    kind = RefusedError if status in _REFUSALS and not lost else AnswerError
    return kind(f"{status}: {message}")
