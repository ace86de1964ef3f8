"""The synchronous client, over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException
from typing_extensions import Unpack

from rose_client.errors import RequestError
from rose_client.wire import Embeddings, EmbedOptions, infer_arguments, read_embeddings


class RoseClient:
    """Embeds texts on a ROSE server. Use as a context manager, or call `close`.

    Args:
        url: `host:port` of the server's gRPC endpoint.
        model: name of the ensemble.
        timeout: seconds a call may take.
    """

    def __init__(self, url: str = "localhost:8001", model: str = "embed", timeout: float = 60.0) -> None:
        self._client = grpcclient.InferenceServerClient(url)
        self._model = model
        self._timeout = timeout

    def embed(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> npt.NDArray[np.float32]:
        """Vectors of the texts, `[num_texts, dim]` float32. Errors as for `embed_with_counts`."""
        return self.embed_with_counts(texts, **options).vectors

    def embed_with_counts(self, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Embed texts in one request; `EmbedOptions` says what may be asked.

        Raises:
            RequestError: the server refused, failed, or did not answer in time.
            ValueError: no texts.
            TypeError: something that is not a string.
        """
        arguments = infer_arguments(self._model, texts, options, self._timeout)
        try:
            return read_embeddings(self._client.infer(**arguments))
        except InferenceServerException as cause:
            raise RequestError.of(cause) from cause

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> RoseClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
