"""Triton adapter of the tokenize step: tensors in, `TokenizeStep`, tensors out."""

import json
import os
import time
from functools import partial
from typing import Any, TypeAlias

import triton_python_backend_utils as pb_utils

from rose_backend.errors import InvalidArgumentError, RoseError, UnavailableError
from rose_backend.queue_board import QueueBoard
from rose_ensemble.arrival import arrival_stamp
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.cores import share_cores
from rose_ensemble.default_checkpoint import resolve_checkpoint
from rose_ensemble.interpreter import take_turns
from rose_ensemble.json_logs import configure_logs
from rose_ensemble.large_requests import LARGE, LargeRequests, answered
from rose_ensemble.metrics import MetricsBook, samples_of
from rose_ensemble.options import RequestOptions
from rose_ensemble.orphan import end_with_server
from rose_ensemble.score_step import ScoreInput, ScoreStep
from rose_ensemble.texts import TextLimits, decode_texts, read_chunk_counts, read_token_input
from rose_ensemble.tokenize_metrics import TokenizeMetrics
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep
from rose_ensemble.tracing import open_tracing

_Prepared: TypeAlias = TokenizeInput | ScoreInput | RoseError


class TritonPythonModel:
    """One tokenizing process."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint's tokenizer."""
        end_with_server()
        configure_logs(model=args["model_name"], instance=args["model_instance_name"])
        config = json.loads(args["model_config"])
        share_cores(sum(int(group["count"]) for group in config["instance_group"]))
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        checkpoint = read_checkpoint(resolve_checkpoint(parameters["checkpoint"]))
        self._scores = checkpoint.scoring is not None
        self._step: Any = (ScoreStep if self._scores else TokenizeStep)(checkpoint, TextLimits())
        self._board = QueueBoard.of_server(os.getppid(), parameters["engine_model"], int(parameters["engines"]))
        labels = {"model": args["model_name"], "instance": args["model_instance_name"]}
        self._book = MetricsBook(samples_of(pb_utils.MetricFamily), labels)
        self._metrics = TokenizeMetrics(self._book)
        self._book.start()
        self._large = LargeRequests()
        take_turns()
        self._tracing = open_tracing("rose")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with its tokens or its own error; None: it is large, and answered later."""
        began = time.perf_counter()
        refusal = self._board.refusal()
        if refusal is not None:  # every engine is full: say so before any work is done
            self._metrics.refused(len(requests))
            return [_response(UnavailableError(refusal)) for _ in requests]
        prepared = [self._read(request) for request in requests]
        sizes = [0 if isinstance(item, RoseError) else item.num_characters for item in prepared]
        if max(sizes) <= LARGE:
            return self._run(requests, prepared, began)
        senders = [request.get_response_sender() for request in requests]
        soon = [index for index, size in enumerate(sizes) if size <= LARGE]
        if soon:
            answers = self._run([requests[index] for index in soon], [prepared[index] for index in soon], began)
            for index, answer in zip(soon, answers, strict=True):
                # not returned: what follows may have to wait for room
                answered(partial(_send, senders[index], answer), partial(_fail, senders[index]))
        for request, item, size, sender in zip(requests, prepared, sizes, senders, strict=True):
            if size > LARGE:
                self._large.put(size, partial(self._answer_later, request, item, sender), partial(_fail, sender))
        return [None] * len(requests)

    def _run(self, requests: list[Any], prepared: list[_Prepared], began: float) -> list[Any]:
        good = [item for item in prepared if not isinstance(item, RoseError)]
        outcomes = iter(self._step.run(good))
        results = [item if isinstance(item, RoseError) else next(outcomes) for item in prepared]
        answers = [_response(result) for result in results]
        seconds = time.perf_counter() - began
        self._metrics.done(good, seconds)
        if self._tracing is not None:
            self._tracing.tokenized(requests, results, seconds)
        return answers

    def _answer_later(self, request: Any, item: _Prepared, sender: Any) -> None:
        refusal = self._board.refusal()  # much may have come since
        if refusal is None:
            [answer] = self._run([request], [item], time.perf_counter())
        else:
            self._metrics.refused(1)
            answer = _response(UnavailableError(refusal))
        _send(sender, answer)

    def finalize(self) -> None:
        """Answer what is large, and hand on the last counts and spans."""
        self._large.close()
        self._book.stop()
        if self._tracing is not None:
            self._tracing.close()

    def _read(self, request: Any) -> _Prepared:
        try:
            options = RequestOptions.read(request.parameters, scoring=self._scores)
            inputs = {tensor.name(): tensor for tensor in request.inputs()}
            if self._scores:
                query, documents = (inputs[name].as_numpy() for name in ("QUERY", "DOCUMENT"))
                return ScoreInput.read(query, documents, options, arrival_stamp(), self._step.limits)
            text, ids, lengths = (inputs.get(name) for name in ("TEXT", "TOKEN_IDS", "TOKEN_LENGTHS"))
            chunks = inputs.get("CHUNK_COUNTS")
            limits = self._step.limits
            if text is not None and ids is None and lengths is None:
                texts = text.as_numpy()
                content = decode_texts(texts, limits)
                counts = None if chunks is None else read_chunk_counts(chunks.as_numpy(), len(content))
                return TokenizeInput(content, texts.shape, options, arrival_stamp(), counts)
            if text is None and ids is not None and lengths is not None and chunks is None:
                counts = lengths.as_numpy()
                tokens = read_token_input(ids.as_numpy(), counts, self._step.checkpoint.vocab_size, limits)
                return TokenizeInput(tokens, counts.shape, options, arrival_stamp())
        except RoseError as error:
            return error.as_value()
        return InvalidArgumentError("give either TEXT, or TOKEN_IDS with TOKEN_LENGTHS; CHUNK_COUNTS goes with TEXT")


def _send(sender: Any, answer: Any) -> None:
    sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _fail(sender: Any, cause: BaseException) -> None:
    error = pb_utils.TritonError(f"tokenization failed: {cause!r}", pb_utils.TritonError.INTERNAL)
    _send(sender, pb_utils.InferenceResponse(error=error))


def _response(outcome: TokenizeOutput | RoseError) -> Any:
    if isinstance(outcome, RoseError):
        error = pb_utils.TritonError(str(outcome), getattr(pb_utils.TritonError, outcome.status.value))
        return pb_utils.InferenceResponse(error=error)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("WORK", outcome.work.pack()),
            pb_utils.Tensor("TOKEN_COUNT", outcome.token_count),
        ]
    )
