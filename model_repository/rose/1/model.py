"""Triton adapter of the engine: tensors in, `RoseService.submit_all`, answers through kept response senders."""

import json
import os
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from rose_backend.admission import Limits
from rose_backend.core import Lane, Request, Results
from rose_backend.engine import RoseEngine
from rose_backend.errors import RoseError
from rose_backend.lanes import BulkPackers
from rose_backend.packer import TokenPacker
from rose_backend.queue_board import QueueBoard
from rose_backend.service import RoseService
from rose_ensemble.arrival import arrived_at
from rose_ensemble.engine_instance import EngineInstance
from rose_ensemble.engine_metrics import EngineMetrics
from rose_ensemble.engine_tracing import TracedMetrics
from rose_ensemble.interpreter import keep_loaded, take_turns
from rose_ensemble.json_logs import configure_logs
from rose_ensemble.metrics import MetricsBook, samples_of
from rose_ensemble.options import RequestOptions
from rose_ensemble.orphan import end_with_server
from rose_ensemble.outputs import OutputRules, Tensors, Wanted, embedding_of, forms_of, tensors_of
from rose_ensemble.scores import score_tensors
from rose_ensemble.tracing import open_tracing
from rose_ensemble.work import NO_STAMP, Work


class TritonPythonModel:
    """One engine on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights, measure, and start the engine's threads."""
        end_with_server()
        configure_logs(model=args["model_name"], instance=args["model_instance_name"])
        take_turns()
        instance = EngineInstance.of(json.loads(args["model_config"]), args["model_instance_name"])
        self._instance = instance
        self._normalize = instance.config.head.normalize
        self._outputs = OutputRules(instance.config.head, instance.matryoshka.dim, instance.outputs)
        self._engine = RoseEngine(instance.config)
        labels = {"model": args["model_name"], "instance": args["model_instance_name"]}
        self._book = MetricsBook(samples_of(pb_utils.MetricFamily), labels)
        self._metrics = EngineMetrics(self._book, self._engine)
        tracing = open_tracing("rose")
        self._traced = None if tracing is None else TracedMetrics(self._metrics, tracing)
        self._board = board = QueueBoard.of_server(os.getppid(), args["model_name"], instance.count)
        budgets, packer = self._engine.budgets, partial(TokenPacker, max_sequences=instance.config.max_sequences)
        self._service = RoseService(
            self._engine,
            packer(budgets.tokens),
            Limits(self._engine.vocab_size, instance.config.max_length, self._engine.fields, self._engine.pools_spans),
            self._traced or self._metrics,
            instance.queue,
            lambda depth, bulk, rate: board.write(instance.index, depth, instance.queue, bulk, rate),
            bulk_packers=BulkPackers(packer(budgets.beside), packer(budgets.bulk)),
        )
        self._metrics.watch(self._service)
        self._book.start()
        keep_loaded()

    def execute(self, requests: list[Any]) -> None:
        """Queue every request; the completer answers later, so nothing is returned."""
        good: list[tuple[Request, Any]] = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                good.append((self._read(request, sender), sender))
            except RoseError as error:
                self._metrics.refused(error)
                _send_error(sender, error)
        outcomes = self._service.submit_all([request for request, _ in good], launch=True)
        for outcome, (_, sender) in zip(outcomes, good, strict=True):
            if outcome is not None:
                _send_error(sender, outcome)
        self._instance.hold_back(self._service, self._board)

    def finalize(self) -> None:
        """Answer what was accepted, then stop."""
        self._service.close()
        if self._traced is not None:
            self._traced.close()
        self._book.stop()
        self._engine.close()

    def _read(self, request: Any, sender: Any) -> Request:
        scoring = self._instance.config.score
        options = RequestOptions.read(request.parameters, scoring=scoring is not None)
        dims = self._instance.matryoshka.wanted(options.dimensions)
        work = Work.unpack(request.inputs()[0].as_numpy())
        tensors: Tensors = partial(embedding_of, work.shape, dims)
        if scoring is not None:
            tensors = partial(score_tensors, work.shape, scoring.activation, options.raw_scores)
        queued = Request(
            work.input_ids,
            work.lengths,
            partial(_answer, sender, tensors),
            normalize=self._normalize if options.normalize is None else options.normalize,
            lane=None if options.lane is None else Lane(options.lane),
            is_cancelled=sender.is_cancelled,
            dims=dims,
            rescale=options.renormalize,
            fields=work.fields,
            spans=work.spans,
            probe=options.probe,
        )
        if options.outputs != ("float",):
            queued.outputs = forms_of(options.outputs, self._outputs.head)
            self._outputs.check(queued)
            lsb_first = options.bit_order == "lsb"
            tokens = self._outputs.head.tokens
            tensors = partial(tensors_of, Wanted.of(queued), shape=work.shape, tokens=tokens, lsb_first=lsb_first)
            queued.reply = partial(_answer, sender, tensors)
        if work.stamp != NO_STAMP:
            queued.arrived = arrived_at(work.stamp)
        if self._traced is not None:
            queued.tag = self._traced.tag_of(request)
        timeout = request.timeout()  # microseconds; 0: none
        if timeout:
            queued.deadline = queued.arrived + timeout / 1e6
        return queued


def _answer(sender: Any, tensors: Tensors, outcome: Results | RoseError) -> None:
    if isinstance(outcome, RoseError):
        _send_error(sender, outcome)
        return
    response = pb_utils.InferenceResponse([pb_utils.Tensor(name, values) for name, values in tensors(outcome)])
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _send_error(sender: Any, error: RoseError) -> None:
    code = getattr(pb_utils.TritonError, error.status.value)
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
