"""Triton adapter of the engine: tensors in, `RoseService.submit`, answers through kept response senders."""

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from rose_backend.admission import Limits
from rose_backend.config import EngineConfig
from rose_backend.core import Batch, Float32Array, Request
from rose_backend.engine import RoseEngine
from rose_backend.errors import InvalidArgumentError, RoseError
from rose_backend.packer import TokenPacker
from rose_backend.service import RoseService
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.default_checkpoint import resolve_checkpoint
from rose_ensemble.devices import resolve_device
from rose_ensemble.options import RequestOptions
from rose_ensemble.pipeline import device_of_instance


class TritonPythonModel:
    """One engine on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights and start the engine's threads."""
        parameters = json.loads(args["model_config"])["parameters"]
        checkpoint = read_checkpoint(resolve_checkpoint(parameters["checkpoint"]["string_value"]))
        config = EngineConfig(
            checkpoint=checkpoint.folder,
            max_length=checkpoint.max_length,
            head=checkpoint.head,
            device=resolve_device(device_of_instance(args["model_instance_name"])),
            token_budget=max(1024, checkpoint.max_length),
        )
        self._normalize = checkpoint.head.normalize
        self._engine = RoseEngine(config)
        self._service = RoseService(
            self._engine,
            TokenPacker(config.token_budget, config.max_sequences),
            Limits(self._engine.vocab_size, config.max_length),
            TritonMetrics({"model": args["model_name"], "instance": args["model_instance_name"]}),
        )

    def execute(self, requests: list[Any]) -> None:
        """Queue every request; the completer answers later, so nothing is returned."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._service.submit(self._read(request, sender))
            except RoseError as error:
                _send_error(sender, error)

    def finalize(self) -> None:
        """Answer what was accepted, then stop."""
        self._service.close()
        self._engine.close()

    def _read(self, request: Any, sender: Any) -> Request:
        options = RequestOptions.read(request.parameters)
        ids = pb_utils.get_input_tensor_by_name(request, "INPUT_IDS").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "LENGTHS").as_numpy()
        b, n = pb_utils.get_input_tensor_by_name(request, "ROWS").as_numpy()[0].tolist()
        if min(b, n) < 1 or b * n != lengths.size:
            raise InvalidArgumentError(f"ROWS says {b} x {n} sequences, but LENGTHS holds {lengths.size}")

        def reply(outcome: Float32Array | RoseError) -> None:
            if isinstance(outcome, RoseError):
                _send_error(sender, outcome)
                return
            tensor = pb_utils.Tensor("EMBEDDING", outcome.reshape(b, n, -1))
            sender.send(pb_utils.InferenceResponse([tensor]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        # Triton's memory is valid only until `execute` returns, so what the queue keeps is copied.
        return Request(
            ids.ravel().copy(),
            lengths.ravel().copy(),
            reply,
            normalize=self._normalize if options.normalize is None else options.normalize,
        )


class TritonMetrics:
    """Counts engine events on Triton's /metrics page; see `rose_backend.metrics.MetricsSink`."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._families: list[Any] = []  # a family that is collected takes its metrics with it

        def counter(name: str, description: str) -> Any:
            family = pb_utils.MetricFamily(name, description, pb_utils.MetricFamily.COUNTER)
            self._families.append(family)
            return family.Metric(labels=labels)

        self._batches = counter("rose_batches_total", "Batches run")
        self._shared = counter("rose_shared_batches_total", "Batches that held sequences of several requests")
        self._mixed = counter("rose_mixed_batches_total", "Batches whose requests differed in number of sequences")
        self._tokens = counter("rose_tokens_total", "Tokens run")
        self._sequences = counter("rose_sequences_total", "Sequences run")
        self._requests = counter("rose_requests_total", "Requests answered")
        self._failed = counter("rose_failed_requests_total", "Requests answered with an error")

    def batch_started(self, batch: Batch) -> None:
        """See `MetricsSink`."""
        sizes = {segment.request.num_sequences for segment in batch.segments}
        self._batches.increment(1)
        self._shared.increment(len(batch.segments) > 1)
        self._mixed.increment(len(sizes) > 1)
        self._tokens.increment(batch.num_tokens)
        self._sequences.increment(batch.num_sequences)

    def request_done(self, *, num_sequences: int, seconds: float, failed: bool) -> None:  # noqa: ARG002
        """See `MetricsSink`."""
        self._requests.increment(1)
        self._failed.increment(failed)


def _send_error(sender: Any, error: RoseError) -> None:
    code = getattr(pb_utils.TritonError, error.status.value)
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
