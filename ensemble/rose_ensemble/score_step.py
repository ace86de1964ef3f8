"""The `tokenize` step of a reranker: many requests in, ragged ids out, each with its own error or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from rose_backend.errors import CheckpointError, InvalidArgumentError, RoseError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.pair_tokenization import Pairs, open_pair_tokenizer
from rose_ensemble.texts import TextLimits, decode_texts
from rose_ensemble.tokenize_step import TokenizeOutput
from rose_ensemble.work import Work


@dataclass(frozen=True)
class ScoreInput:
    """One client request.

    Attributes:
        query: what the documents are ranked for.
        content: the documents.
        options: its parameters.
        arrived: see `arrival_stamp`.
    """

    query: str
    content: list[str]
    options: RequestOptions
    arrived: int

    @property
    def shape(self) -> tuple[int, int]:
        """The client's `[1, num_documents]`."""
        return 1, len(self.content)

    @property
    def num_characters(self) -> int:
        """To be tokenized at most: with some checkpoints, query and instruction go with each document."""
        around = len(self.query) + len(self.options.instruction or "")
        return sum(map(len, self.content)) + len(self.content) * around

    @classmethod
    def read(
        cls,
        query: npt.NDArray[Any],
        documents: npt.NDArray[Any],
        options: RequestOptions,
        arrived: int,
        limits: TextLimits,
    ) -> ScoreInput:
        """Check `QUERY` `[1, 1]` and `DOCUMENT` `[1, num_documents]`, both BYTES.

        Raises:
            InvalidArgumentError: shape, size or encoding is wrong; the message names the tensor.
        """
        [text, *others] = decode_texts(query, limits, "QUERY")
        if others:
            raise InvalidArgumentError(f"QUERY has shape {list(query.shape)}: expected [1, 1], one query a request")
        texts = decode_texts(documents, limits, "DOCUMENT")
        if documents.shape[0] != 1:
            raise InvalidArgumentError(f"DOCUMENT has shape {list(documents.shape)}: expected [1, num_documents]")
        return cls(text, texts, options, arrived)


class ScoreStep:
    """Turns requests into ragged token ids for one reranker.

    Args:
        checkpoint: of a reranker.
        limits: checked where tensors are read; kept here so that the adapter passes one object.

    Raises:
        CheckpointError: it is no reranker, or its tokenizer cannot be used.
    """

    def __init__(self, checkpoint: Checkpoint, limits: TextLimits) -> None:
        if checkpoint.scoring is None:
            raise CheckpointError(f"{checkpoint.folder} is not a reranker")
        self.checkpoint = checkpoint
        self.limits = limits
        self._templated = checkpoint.scoring.template is not None
        self._tokenizer = open_pair_tokenizer(checkpoint, checkpoint.scoring)

    def run(self, requests: Sequence[ScoreInput]) -> list[TokenizeOutput | RoseError]:
        """Tokenize all requests in one call; the fault of one is its own."""
        try:
            return self._run_together(requests)
        except InvalidArgumentError as error:
            if len(requests) == 1:
                return [error.as_value()]
            return [outcome for request in requests for outcome in self.run([request])]

    def _run_together(self, requests: Sequence[ScoreInput]) -> list[TokenizeOutput | RoseError]:
        """One call into the tokenizer; raises where some text cannot be tokenized."""
        texts: list[str] = []
        prepared: list[tuple[ScoreInput, Pairs, slice] | RoseError] = []
        for request in requests:
            pairs = Pairs(request.query, request.content, request.options)
            try:
                self._check(pairs)
            except RoseError as error:
                prepared.append(error.as_value())
                continue
            own = self._tokenizer.texts(pairs)
            prepared.append((request, pairs, slice(len(texts), len(texts) + len(own))))
            texts += own
        encoded = self._tokenizer.encode(texts)
        return [
            item if isinstance(item, RoseError) else self._finish(item[0], item[1], encoded[item[2]])
            for item in prepared
        ]

    def _check(self, pairs: Pairs) -> None:
        instruction = pairs.options.instruction
        if not self._templated:
            if instruction is not None:
                raise InvalidArgumentError("parameter 'instruction': this checkpoint takes none")
            return
        # Here the query is tokenized anew with every document.
        size = len(pairs.documents) * (len(pairs.query) + len(instruction or ""))
        if size > self.limits.max_bytes:
            raise InvalidArgumentError(
                f"QUERY and instruction, repeated for {len(pairs.documents)} documents, have {size} characters: "
                f"the limit is {self.limits.max_bytes} in one request"
            )

    def _finish(self, request: ScoreInput, pairs: Pairs, encoded: Sequence[list[int]]) -> TokenizeOutput | RoseError:
        try:
            tokens, fields = self._tokenizer.join(pairs, encoded)
        except RoseError as error:
            return error.as_value()
        work = Work(request.shape, request.arrived, tokens.lengths, tokens.ids, fields)
        return TokenizeOutput(work, tokens.lengths.reshape(request.shape))
