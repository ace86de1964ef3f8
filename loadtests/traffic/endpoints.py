"""Embedding servers as load tests see them: texts in, number of tokens out. For processes that gevent has patched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import grpc
import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from geventhttpclient import HTTPClient
from tritonclient.utils import InferenceServerException

_OUTPUTS = ("EMBEDDING", "TOKEN_COUNT")
_REFUSALS = frozenset({"StatusCode.UNAVAILABLE", "StatusCode.RESOURCE_EXHAUSTED", "429", "503"})
_NOBODY_THERE = ("failed to connect", "Connection reset", "Socket closed")  # gRPC calls these UNAVAILABLE as well


class AnswerError(Exception):
    """The server's answer was an error, or not what was asked for."""


class RefusedError(AnswerError):
    """The server said that it is too busy."""


class Endpoint(Protocol):
    """A server; used by many greenlets at once."""

    def embed(self, texts: Sequence[str]) -> int:
        """Embed; the number of tokens that the server says it ran.

        Raises:
            AnswerError: it did not answer, or not with a vector for every text.
        """

    def close(self) -> None:
        """Give its connections up."""


class TritonGrpc:
    """An embedding ensemble over gRPC.

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
        """See `Endpoint`."""
        tensor = grpcclient.InferInput("TEXT", [1, len(texts)], "BYTES")
        tensor.set_data_from_numpy(_rows(texts))
        wanted = [grpcclient.InferRequestedOutput(name) for name in _OUTPUTS]
        try:
            result = self._client.infer(self._model, [tensor], outputs=wanted, client_timeout=self._timeout)
        except InferenceServerException as error:
            raise _classified(error.status(), error.message()) from error
        except grpc.RpcError as error:
            raise _classified(str(error.code()), error.details()) from error
        return _checked(result, len(texts))

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()


class TritonHttp:
    """An embedding ensemble over HTTP, tensors in binary.

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

    def embed(self, texts: Sequence[str]) -> int:
        """See `Endpoint`."""
        tensor = httpclient.InferInput("TEXT", [1, len(texts)], "BYTES")
        tensor.set_data_from_numpy(_rows(texts))
        wanted = [httpclient.InferRequestedOutput(name, binary_data=True) for name in _OUTPUTS]
        try:
            result = self._client.infer(self._model, [tensor], outputs=wanted)
        except InferenceServerException as error:
            raise _classified(error.status(), error.message()) from error
        except OSError as error:
            raise AnswerError(f"no answer: {error}") from error
        return _checked(result, len(texts))

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()


class OpenAI:
    """`/v1/embeddings` of any server: TEI, Infinity, vLLM, a gateway.

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
        """See `Endpoint`."""
        body = json.dumps({"model": self._model, "input": list(texts), "encoding_format": "base64"})
        try:
            answer = self._client.post(self._path, body=body, headers={"Content-Type": "application/json"})
            content = answer.read()
        except OSError as error:
            raise AnswerError(f"no answer: {error}") from error
        if answer.status_code != 200:
            raise _classified(str(answer.status_code), content[:300].decode(errors="replace"))
        try:
            found = json.loads(content)
            num_vectors, tokens = len(found["data"]), int(found["usage"]["prompt_tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise AnswerError(f"not an answer of /v1/embeddings: {content[:300]!r}") from error
        if num_vectors != len(texts):
            raise AnswerError(f"{num_vectors} vectors for {len(texts)} texts")
        return tokens

    def close(self) -> None:
        """See `Endpoint`."""
        self._client.close()


def _rows(texts: Sequence[str]) -> Any:
    return np.array([[text.encode() for text in texts]], dtype=np.object_)


def _checked(result: Any, num_texts: int) -> int:
    vectors, counts = (result.as_numpy(name) for name in _OUTPUTS)
    if vectors is None or counts is None or vectors.shape[1] != num_texts:
        raise AnswerError(f"not a vector for each of {num_texts} texts")
    return int(counts.sum())


def _classified(status: str | None, message: str | None) -> AnswerError:
    lost = any(words in (message or "") for words in _NOBODY_THERE)
    kind = RefusedError if status in _REFUSALS and not lost else AnswerError
    return kind(f"{status}: {message}")
