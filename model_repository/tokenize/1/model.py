"""Triton adapter of the tokenize step: tensors in, `TokenizeStep`, tensors out."""

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from rose_backend.errors import InvalidArgumentError, RoseError
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.default_checkpoint import resolve_checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.texts import TextLimits, decode_texts, read_token_input
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep


class TritonPythonModel:
    """One tokenizing process."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint's tokenizer."""
        parameters = json.loads(args["model_config"])["parameters"]
        checkpoint = read_checkpoint(resolve_checkpoint(parameters["checkpoint"]["string_value"]))
        self._step = TokenizeStep(checkpoint, TextLimits())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with its tokens or its own error."""
        prepared = [self._read(request) for request in requests]
        good = [item for item in prepared if isinstance(item, TokenizeInput)]
        outcomes = iter(self._step.run(good))
        return [_response(next(outcomes) if isinstance(item, TokenizeInput) else item) for item in prepared]

    def _read(self, request: Any) -> TokenizeInput | RoseError:
        try:
            options = RequestOptions.read(request.parameters)
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            ids = pb_utils.get_input_tensor_by_name(request, "TOKEN_IDS")
            lengths = pb_utils.get_input_tensor_by_name(request, "TOKEN_LENGTHS")
            limits = self._step.limits
            if text is not None and ids is None and lengths is None:
                texts = text.as_numpy()
                return TokenizeInput(decode_texts(texts, limits), texts.shape, options)
            if text is None and ids is not None and lengths is not None:
                counts = lengths.as_numpy()
                content = read_token_input(ids.as_numpy(), counts, self._step.checkpoint.vocab_size, limits)
                return TokenizeInput(content, counts.shape, options)
        except RoseError as error:
            return error
        return InvalidArgumentError("give either TEXT, or TOKEN_IDS with TOKEN_LENGTHS")


def _response(outcome: TokenizeOutput | RoseError) -> Any:
    if isinstance(outcome, RoseError):
        error = pb_utils.TritonError(str(outcome), getattr(pb_utils.TritonError, outcome.status.value))
        return pb_utils.InferenceResponse(error=error)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("INPUT_IDS", outcome.input_ids),
            pb_utils.Tensor("LENGTHS", outcome.lengths),
            pb_utils.Tensor("ROWS", outcome.rows),
            pb_utils.Tensor("TOKEN_COUNT", outcome.token_count),
        ]
    )
