"""Running batches on a GPU: stage, then run eagerly or replay, then copy the result back asynchronously.

One thread at a time owns the runner. Nothing here waits for the device. What is captured is decided in `graphs.py`, and
done in `capture.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import torch

from rose_backend.attention.base import Attentions, RaggedLayout
from rose_backend.attention.select import select_attention
from rose_backend.buckets import Bucket, covering_buckets
from rose_backend.capture import CudaRecording, GraphRecorder
from rose_backend.config import EngineConfig
from rose_backend.core import FLOAT, OF_TOKENS, Batch, Output
from rose_backend.cuda_driver import CudaDriver
from rose_backend.forward import forward
from rose_backend.graphs import GraphCache, GraphCounters
from rose_backend.heads import Head
from rose_backend.hot_buckets import HotBuckets
from rose_backend.kernels.triton_ops import TritonOps
from rose_backend.lazy_tensor import CopyEvents, LazyTensor, PinnedRing
from rose_backend.models.base import RaggedModel
from rose_backend.spans import SpanStaging
from rose_backend.staging import DeviceInputs, InputStaging

_TOKEN_GRAPHS_SHARE = 4  # of the budget of the other recordings, in addition to it
_thread = threading.local()  # `runner`: whose stream is the thread's current one


class CudaRunner:
    """See `Runner`.

    Args:
        model: on its CUDA device.
        head: on the same.
        config: limits, attention and capture settings.
        largest: no batch is larger.
    """

    def __init__(self, model: RaggedModel, head: Head, config: EngineConfig, largest: Bucket) -> None:
        self._model = model
        self._head = head
        self._device = model.geometries[0].device
        torch.cuda.set_device(self._device)  # events belong to the current card, whichever records them
        self._ops = TritonOps(self._device, model.geometries[0].dtype)
        self.selectors = [
            select_attention(
                geometry,
                self._ops,
                config.attention,
                model.layer_kinds.count(kind),
                config.max_length,
                largest.num_tokens,
                rotates=model.rotates,
            )
            for kind, geometry in enumerate(model.geometries)
        ]
        self._stream = torch.cuda.Stream(self._device)
        self._copy_stream = torch.cuda.Stream(self._device)
        self._driver = CudaDriver()
        self._staging = InputStaging(largest.num_tokens, largest.num_sequences, self._device, head.fields)
        self._largest = largest
        self._results = PinnedRing(largest.num_sequences * head.dim)
        self._rings = {FLOAT: self._results}  # others follow when they are first wanted
        self._recorder = GraphRecorder(self._device, model.geometries[0].dtype)
        self._ran: set[tuple[Bucket, bool]] = set()  # and whether token vectors were wanted: every kernel is loaded
        self._attentions: dict[Bucket, Attentions] = {}
        self._copied: int | None = None  # handle of the event after the last copy to the host
        capturable = all(backend.capturable for selector in self.selectors for backend in selector.backends)
        limit = largest.num_tokens if config.graphs.largest_bucket is None else config.graphs.largest_bucket
        limit = limit if capturable else 0
        self.graphs = GraphCache(self._capture, config.graphs.memory_budget, limit)
        # Of batches with spans, or whose token vectors are wanted: these end there, and the rest follows in the stream.
        share = config.graphs.memory_budget // _TOKEN_GRAPHS_SHARE
        self.token_graphs = GraphCache(self._capture_tokens, share, limit)
        self._tokens: torch.Tensor | None = None  # where their results go; made when first wanted
        self._spans = SpanStaging(self._device, self._driver)
        self._max_length = config.max_length
        self._covers: deque[Bucket] | None = None  # still to be recorded; made when first asked for
        self.hot = HotBuckets.of(config, torch.cuda.get_device_name(self._device), largest)

    def run(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> LazyTensor:  # noqa: ARG002
        """See `Runner`."""
        bucket = Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen)
        self._own_stream()
        if not batch.keeps_tokens:
            self.hot.hit(bucket)
            return self._run(batch, *self.graphs.find(bucket))
        return self._run(batch, *self.token_graphs.find(bucket))

    def run_recorded(self, batch: Batch) -> LazyTensor:
        """As `run` on a bucket's later hits, counting nothing."""
        bucket = Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen)
        self._own_stream()
        self.graphs.warm([bucket])
        return self._run(batch, bucket, self.graphs.recorded(bucket))

    @property
    def pools_spans(self) -> bool:
        """Whether batches may have spans."""
        return self._head.pools_spans

    @property
    def outputs(self) -> Output:
        """Every form in which vectors may be wanted."""
        return self._head.outputs

    def run_eagerly(self, batch: Batch) -> LazyTensor:
        """As `run`, whatever is recorded, and recording nothing."""
        self._own_stream()
        return self._run(batch, Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen), None)

    @property
    def graph_counters(self) -> GraphCounters:
        """See `Runner`."""
        return self.graphs.counters + self.token_graphs.counters

    def record_up_to(self, num_tokens: int) -> None:
        """See `GraphCache`."""
        self.graphs.record_up_to(num_tokens)
        self.token_graphs.record_up_to(num_tokens)

    def warm(self, buckets: Iterable[Bucket]) -> None:
        """Record buckets ahead of their first hit."""
        self._own_stream()
        self.graphs.warm(buckets)

    def forget(self) -> None:
        """Free all recordings and their memory. Waits for the device."""
        self._own_stream()
        self._stream.synchronize()
        self.graphs.reset()
        self.token_graphs.reset()
        self._recorder.forget_pool()
        torch.cuda.empty_cache()

    has_teams = False

    def leave(self) -> None:
        """See `Runner`: threads have nothing of their own here."""

    def idle(self) -> bool:
        """See `Runner`: record a bucket that was hot before the last restart, covers many, or is hot now."""
        self._own_stream()  # what is recorded may be kept now, and another freed: that waits for the stream
        if self.graphs.recording:
            return True
        bucket = self.hot.next_from_before() or self._next_cover() or self.graphs.wanted()
        if bucket is None:
            self.hot.save()
            return False
        self.graphs.begin(bucket)
        return True

    def _next_cover(self) -> Bucket | None:
        if self._covers is None:
            self._covers = deque(covering_buckets(min(self.graphs.largest, self._largest.num_tokens), self._max_length))
        while self._covers:
            bucket = self._covers.popleft()
            if self._largest.holds(bucket):
                return bucket
        return None

    def close(self) -> None:
        """See `Runner`."""
        self.hot.save(now=True)
        self._own_stream()
        self._stream.synchronize()
        self._copy_stream.synchronize()
        self.graphs.reset()
        self.token_graphs.reset()
        self._recorder.close()
        torch.cuda.set_stream(torch.cuda.default_stream(self._device))
        _thread.runner = None

    def _own_stream(self) -> None:
        """Make `_stream` the calling thread's current one: cheaper once than as a context around every step."""
        if getattr(_thread, "runner", None) is not self:
            torch.cuda.set_stream(self._stream)
            _thread.runner = self

    def _run(self, batch: Batch, bucket: Bucket, recording: CudaRecording | None) -> LazyTensor:
        driver, stream = self._driver, self._stream.cuda_stream
        self._recorder.wait_for(bucket)
        stage = self._staging.fill(batch, bucket)
        driver.copy_to_device(stage.target, stage.source, stage.num_bytes, stream)
        attention = self._attention(bucket)
        attention.plan(stage.offsets)
        driver.record(stage.copied.cuda_event, stream)
        self._let_out()
        if recording is None:
            head = None if batch.keeps_tokens else self._head
            output = self._forward(self._staging.views(bucket), attention, head)
            output.record_stream(self._copy_stream)  # freed memory must not be handed out while it is copied
            self._ran.add((bucket, batch.keeps_tokens))
        else:
            output = recording.output
            driver.launch(recording.handle, stream)
        padding, replayed = bucket.num_tokens - batch.num_tokens, recording is not None
        if batch.outputs is FLOAT and batch.spans is None:
            return self._copy_back(output, batch.num_sequences, padding, replayed)
        return self._copy_forms(output, batch, bucket, padding, replayed)

    def _let_out(self) -> None:
        """Let what comes next in the stream wait for the last copy to the host.

        Results of different buckets may share memory. And what is freed while something is being recorded is handed
        out again at once: the allocator takes `record_stream` by any thread, at the time, for a part of the recording.
        """
        if self._copied is not None:
            self._driver.wait(self._stream.cuda_stream, self._copied)

    def _copy_back(self, output: torch.Tensor, num_sequences: int, padding: int, replayed: bool) -> LazyTensor:
        rows, address, events = self._results.take(num_sequences, output.shape[1])
        assert events is not None
        driver, stream = self._driver, self._copy_stream.cuda_stream
        driver.record(events.computed.cuda_event, self._stream.cuda_stream)
        driver.wait(stream, events.computed.cuda_event)
        driver.copy_to_host(address, output.data_ptr(), rows.nbytes, stream)
        self._copied = events.copied.cuda_event
        driver.record(self._copied, stream)
        return LazyTensor(rows, events, padding, replayed=replayed)

    @torch.inference_mode()
    def _copy_forms(
        self, output: torch.Tensor, batch: Batch, bucket: Bucket, padding: int, replayed: bool
    ) -> LazyTensor:
        """Make what is wanted of a batch's vectors, or token vectors, behind it in its stream; copy nothing else."""
        driver, stream = self._driver, self._copy_stream.cuda_stream
        inputs, count = self._staging.views(bucket), batch.num_sequences
        if batch.keeps_tokens:
            spans = None if batch.spans is None else self._spans.send(batch.spans, self._stream.cuda_stream)
            made = self._head.forms(self._ops, output, inputs, spans, batch.outputs)
            rows = count if spans is None else len(spans.starts)
            forms = {form: x[: batch.num_tokens if form in OF_TOKENS else rows] for form, x in made.items()}
        else:
            forms = self._head.quantizer(self._ops, output[:count], inputs.normalize, batch.outputs)
        taken = {form: self._ring(form, values).take(*values.shape) for form, values in forms.items()}
        events = [slot for _, _, slot in taken.values() if slot is not None]
        whole = CopyEvents(events[0].computed, events[-1].copied)
        driver.record(whole.computed.cuda_event, self._stream.cuda_stream)
        driver.wait(stream, whole.computed.cuda_event)
        for (form, (values, address, _)), slot in zip(taken.items(), events, strict=True):
            if forms[form].data_ptr() != output.data_ptr():  # made here, and freed as soon as this returns
                forms[form].record_stream(self._copy_stream)
            driver.copy_to_host(address, forms[form].data_ptr(), values.nbytes, stream)
            driver.record(slot.copied.cuda_event, stream)  # for whoever takes the slot next
        self._copied = whole.copied.cuda_event
        results = {form: values for form, (values, _, _) in taken.items()}
        return LazyTensor(results, whole, padding, replayed=replayed)

    def _ring(self, form: Output, values: torch.Tensor) -> PinnedRing:
        if form not in self._rings:
            self._rings[form] = PinnedRing(self._largest.num_sequences * values.shape[1], values.dtype)
        return self._rings[form]

    @torch.inference_mode()
    def _forward(self, inputs: DeviceInputs, attention: Attentions, head: Head | None) -> torch.Tensor:
        return forward(self._model, self._ops, inputs, attention, head)

    def _attention(self, bucket: Bucket) -> Attentions:
        attention = self._attentions.get(bucket)
        if attention is None:
            self._let_out()
            attention = self._attentions[bucket] = self._open_attention(bucket, self._staging.views(bucket))
        return attention

    def _open_attention(self, bucket: Bucket, inputs: DeviceInputs) -> Attentions:
        layout = RaggedLayout(inputs.cu_seqlens, bucket.num_tokens, bucket.max_seqlen)
        return Attentions.open([selector.choose(bucket) for selector in self.selectors], layout)

    def _capture(self, bucket: Bucket) -> Future[CudaRecording]:
        return self._begin(bucket, self._head, lambda output: output)

    def _capture_tokens(self, bucket: Bucket) -> Future[CudaRecording]:
        """As `_capture`, up to token vectors. All recordings leave them in one place: they are large."""
        room = min(self.token_graphs.largest, self._largest.num_tokens)
        if self._tokens is None:
            geometry = self._model.geometries[0]
            self._tokens = torch.empty((room, self._model.hidden_size), dtype=geometry.dtype, device=self._device)
        kept = self._tokens[: bucket.num_tokens]
        return self._begin(bucket, None, kept.copy_)

    @torch.inference_mode()
    def _begin(
        self, bucket: Bucket, head: Head | None, keep: Callable[[torch.Tensor], torch.Tensor]
    ) -> Future[CudaRecording]:
        """Record a bucket, planned as for a batch that fills it; the caller has made `_stream` current."""
        self._recorder.wait_for(bucket)
        inputs, attention = self._staging.views(bucket), self._attention(bucket)
        offsets = _filling_offsets(bucket)
        attention.plan(offsets)

        def rehearse() -> None:
            others = self._staging.filled(bucket, offsets)
            elsewhere = self._open_attention(bucket, others)
            elsewhere.plan(offsets)
            self._forward(others, elsewhere, head)

        @torch.inference_mode()
        def run() -> torch.Tensor:
            return keep(self._forward(inputs, attention, head))

        ran = (bucket, head is None) in self._ran
        self._ran.add((bucket, head is None))
        if not ran and any(selector.choose(bucket).shares_workspace for selector in self.selectors):
            self._let_out()
            rehearse()  # here, since it must not run beside other batches
            ran = True
        return self._recorder.begin(bucket, run, None if ran else rehearse)


def _filling_offsets(bucket: Bucket) -> torch.Tensor:
    """Offsets of a batch that fills a bucket, its sequences as equal as can be; the padding sequence is empty."""
    count = bucket.num_sequences
    steps = torch.arange(count + 1, dtype=torch.int64) * bucket.num_tokens // count
    steps = torch.cat([steps, steps[-1:]])
    return steps.to(torch.int32).pin_memory()
