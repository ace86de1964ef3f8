"""The `tokenize` step: many requests in, ragged ids out, each with its own error or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rose_backend.core import Field, Fields, Int32Array
from rose_backend.errors import InvalidArgumentError, RoseError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.documents import DocumentTokenizer
from rose_ensemble.options import RequestOptions
from rose_ensemble.templates import prompt_for
from rose_ensemble.texts import TextLimits, TokenInput
from rose_ensemble.tokenization import TextTokenizer, Tokens
from rose_ensemble.work import Work


@dataclass(frozen=True)
class TokenizeInput:
    """One client request.

    Attributes:
        content: its texts, row by row, or its token ids.
        shape: the client's `[b, n]`.
        options: its parameters.
        arrived: see `arrival_stamp`.
        chunk_counts: `[num_documents]` int32, how many of the texts form each document; None: each is on its own.
    """

    content: list[str] | TokenInput
    shape: tuple[int, int]
    options: RequestOptions
    arrived: int
    chunk_counts: Int32Array | None = None

    @property
    def num_characters(self) -> int:
        """To be tokenized; a prompt that the request brings goes with each text."""
        if isinstance(self.content, TokenInput):
            return 0
        return sum(map(len, self.content)) + len(self.content) * len(self.options.prompt or "")


@dataclass(frozen=True)
class TokenizeOutput:
    """What goes on to `rose`, and the counts that go back to the client.

    Attributes:
        work: the request's sequences.
        token_count: `[b, n]` int32, tokens after truncation; of chunks, those that their vectors are made of.
    """

    work: Work
    token_count: Int32Array


class TokenizeStep:
    """Turns requests into ragged token ids for one checkpoint.

    Args:
        checkpoint: prompts and tokenizer.
        limits: checked where tensors are read; kept here so that the adapter passes one object.
    """

    def __init__(self, checkpoint: Checkpoint, limits: TextLimits) -> None:
        self.checkpoint = checkpoint
        self.limits = limits
        self._tokenizer = TextTokenizer(checkpoint)
        self._documents = DocumentTokenizer(checkpoint, self._tokenizer)

    def run(self, requests: Sequence[TokenizeInput]) -> list[TokenizeOutput | RoseError]:
        """Tokenize all requests in one call; the fault of one is its own."""
        try:
            return self._run_together(requests)
        except InvalidArgumentError as error:
            if len(requests) == 1:
                return [error.as_value()]
            return [outcome for request in requests for outcome in self.run([request])]

    def _run_together(self, requests: Sequence[TokenizeInput]) -> list[TokenizeOutput | RoseError]:
        """One call into the tokenizer; raises where some text cannot be tokenized."""
        texts: list[str] = []
        prepared: list[tuple[TokenizeInput, slice] | TokenizeOutput | RoseError] = []
        for request in requests:
            try:
                if request.chunk_counts is not None or request.options.late_chunking:
                    prepared.append(self._chunked(request))
                    continue
                own = self._prompted(request)
            except RoseError as error:
                prepared.append(error.as_value())
                continue
            prepared.append((request, slice(len(texts), len(texts) + len(own))))
            texts += own
        encoded = self._tokenizer.encode(texts)
        return [self._finish(item[0], encoded[item[1]]) if isinstance(item, tuple) else item for item in prepared]

    def _chunked(self, request: TokenizeInput) -> TokenizeOutput:
        options, counts = request.options, request.chunk_counts
        if counts is None:
            raise InvalidArgumentError(
                "parameter 'late_chunking' is true, but CHUNK_COUNTS does not say what is a document"
            )
        if isinstance(request.content, TokenInput):
            raise InvalidArgumentError("CHUNK_COUNTS applies to TEXT; TOKEN_IDS are used as they are")
        self._documents.check(late_chunking=options.late_chunking)
        found = self._documents.encode(request.content, counts, self._prompt_of(options, len(counts)))
        tokens, spans = found.tokens, found.spans
        work = Work(request.shape, request.arrived, tokens.lengths, tokens.ids, spans=spans)
        return TokenizeOutput(work, (spans.stops - spans.starts).reshape(request.shape))

    def _prompted(self, request: TokenizeInput) -> list[str]:
        options = request.options
        if isinstance(request.content, TokenInput):
            if options.prompt is not None or options.prompt_name is not None or options.input_type is not None:
                raise InvalidArgumentError("prompts apply to TEXT; TOKEN_IDS are used as they are")
            return []
        prompt = self._prompt_of(options, len(request.content))
        return [prompt + text for text in request.content] if prompt else request.content

    def _prompt_of(self, options: RequestOptions, times: int) -> str:
        prompt = prompt_for(self.checkpoint, options)
        size = times * len(prompt)
        if size > self.limits.max_bytes:
            raise InvalidArgumentError(
                f"the prompt, repeated for {times} texts, has {size} characters: "
                f"the limit is {self.limits.max_bytes} in one request"
            )
        return prompt

    def _finish(self, request: TokenizeInput, encoded: Sequence[list[int]]) -> TokenizeOutput | RoseError:
        try:
            tokens = self._tokens(request, encoded)
            fields = {} if self.checkpoint.head.include_prompt else self._prompt_lengths(request, encoded)
        except RoseError as error:
            return error.as_value()
        work = Work(request.shape, request.arrived, tokens.lengths, tokens.ids, fields)
        return TokenizeOutput(work, tokens.lengths.reshape(request.shape))

    def _prompt_lengths(self, request: TokenizeInput, encoded: Sequence[list[int]]) -> Fields:
        options = request.options
        prompt = "" if isinstance(request.content, TokenInput) else prompt_for(self.checkpoint, options)
        if not prompt:
            return {}
        direction = options.truncation_direction
        return {Field.POOL_FROM: self._tokenizer.prompt_lengths(prompt, encoded, direction=direction)}

    def _tokens(self, request: TokenizeInput, encoded: Sequence[list[int]]) -> Tokens:
        if isinstance(request.content, TokenInput):
            longest = int(request.content.lengths.max())
            if longest > self.checkpoint.max_length:
                raise InvalidArgumentError(
                    f"TOKEN_LENGTHS holds {longest}: the limit is {self.checkpoint.max_length} tokens, "
                    "and token ids are never truncated"
                )
            return Tokens(request.content.ids, request.content.lengths)
        options = request.options
        return self._tokenizer.fit(encoded, truncate=options.truncate, direction=options.truncation_direction)
