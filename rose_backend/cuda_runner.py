"""Running batches on a GPU: stage, then run eagerly, capture or replay, then copy the result back asynchronously.

One thread owns the runner. Nothing here waits for the device except a capture's own bookkeeping.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rose_backend.attention.base import Attention, RaggedLayout
from rose_backend.attention.select import select_attention
from rose_backend.buckets import Bucket
from rose_backend.config import EngineConfig
from rose_backend.core import Batch
from rose_backend.graphs import GraphCache
from rose_backend.kernels.triton_ops import TritonOps
from rose_backend.lazy_tensor import LazyTensor, PinnedRing
from rose_backend.models.base import RaggedModel
from rose_backend.staging import DeviceInputs, InputStaging

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CudaRecording:
    """One bucket's graph and its static result."""

    graph: torch.cuda.CUDAGraph
    output: torch.Tensor  # [num_sequences, dim] float32
    num_bytes: int

    def close(self) -> None:
        """See `Recording`."""
        torch.cuda.current_stream().synchronize()
        self.graph.reset()


class CudaRunner:
    """See `Runner`.

    Args:
        model: on its CUDA device.
        config: limits, pooling, attention and capture settings.
    """

    def __init__(self, model: RaggedModel, config: EngineConfig) -> None:
        self._model = model
        self._pooling = config.head.pooling
        self._device = model.geometry.device
        self._ops = TritonOps(self._device, model.geometry.dtype)
        largest = Bucket.fitting(config.token_budget, config.max_sequences, config.max_length)
        self.attention = select_attention(
            model.geometry,
            self._ops,
            config.attention,
            model.num_layers,
            config.max_length,
            largest.num_tokens,
            rotates=model.rotates,
        )
        self._stream = torch.cuda.Stream(self._device)
        self._copy_stream = torch.cuda.Stream(self._device)
        self._staging = InputStaging(largest.num_tokens, largest.num_sequences, self._device)
        self._results = PinnedRing(largest.num_sequences * model.hidden_size)
        self._pool = torch.cuda.graph_pool_handle()
        self._attentions: dict[Bucket, Attention] = {}
        self._computed = torch.cuda.Event()
        self._copied: torch.cuda.Event | None = None
        self.graphs = GraphCache(
            self._capture,
            config.graphs.memory_budget,
            config.graphs.largest_bucket if all(b.capturable for b in self.attention.backends) else 0,
        )

    @torch.inference_mode()
    def run(self, batch: Batch) -> LazyTensor:
        """See `Runner`."""
        bucket = Bucket.fitting(batch.num_tokens, batch.num_sequences, batch.max_seqlen)
        with torch.cuda.stream(self._stream):
            recording = self.graphs.find(bucket)
            offsets = self._staging.load(batch, bucket)
            attention = self._attention(bucket)
            attention.plan(offsets)
            self._staging.sent()
            if self._copied is not None:
                # Results of different buckets may share memory: the last one must be out before it is overwritten.
                self._stream.wait_event(self._copied)
            if recording is None:
                output = self._forward(self._staging.views(bucket), attention)
                output.record_stream(self._copy_stream)  # freed memory must not be handed out while it is copied
            else:
                recording.graph.replay()
                output = recording.output
            self._computed.record(self._stream)
        return self._copy_back(output, batch.num_sequences)

    @torch.inference_mode()
    def warm(self, buckets: Iterable[Bucket]) -> None:
        """Record buckets ahead of their first hit."""
        with torch.cuda.stream(self._stream):
            self.graphs.warm(buckets)

    def close(self) -> None:
        """See `Runner`."""
        self._stream.synchronize()
        self._copy_stream.synchronize()
        self.graphs.close()

    def _copy_back(self, output: torch.Tensor, num_sequences: int) -> LazyTensor:
        target, rows, copied = self._results.take(num_sequences, output.shape[1])
        assert copied is not None
        with torch.cuda.stream(self._copy_stream):
            self._copy_stream.wait_event(self._computed)
            target.copy_(output[:num_sequences], non_blocking=True)
            copied.record(self._copy_stream)
        self._copied = copied
        return LazyTensor(rows, copied)

    def _forward(self, inputs: DeviceInputs, attention: Attention) -> torch.Tensor:
        positions = self._ops.positions(inputs.cu_seqlens, len(inputs.input_ids), self._model.max_positions)
        hidden = self._model(inputs.input_ids, positions, attention)
        return self._ops.pool(hidden, inputs.cu_seqlens, inputs.normalize, self._pooling)

    def _attention(self, bucket: Bucket) -> Attention:
        attention = self._attentions.get(bucket)
        if attention is None:
            layout = RaggedLayout(self._staging.views(bucket).cu_seqlens, bucket.num_tokens, bucket.max_seqlen)
            attention = self._attentions[bucket] = self.attention.choose(bucket).open(layout)
        return attention

    def _capture(self, bucket: Bucket) -> CudaRecording:
        """Record a bucket on a batch that fills it; the caller has made `_stream` current."""
        began = time.perf_counter()
        free_before, _ = torch.cuda.mem_get_info(self._device)
        inputs = self._staging.views(bucket)
        attention = self._attention(bucket)
        offsets = _filling_offsets(bucket)
        inputs.input_ids.zero_()
        inputs.cu_seqlens.copy_(offsets, non_blocking=True)
        attention.plan(offsets)
        self._forward(inputs, attention)  # first-use work (kernel loading, library handles) cannot be captured
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`: that collects garbage and empties caches, which a running server would feel.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            output = self._forward(inputs, attention)
        finally:
            graph.capture_end()
        free_after, _ = torch.cuda.mem_get_info(self._device)
        num_bytes = max(0, free_before - free_after)
        seconds = time.perf_counter() - began
        logger.info("graph captured", extra={"bucket": bucket, "bytes": num_bytes, "seconds": round(seconds, 3)})
        return CudaRecording(graph, output, num_bytes)


def _filling_offsets(bucket: Bucket) -> torch.Tensor:
    """Offsets of a batch that fills a bucket, its sequences as equal as can be; the padding sequence is empty."""
    count = bucket.num_sequences
    steps = torch.arange(count + 1, dtype=torch.int64) * bucket.num_tokens // count
    steps = torch.cat([steps, steps[-1:]])
    return steps.to(torch.int32).pin_memory()
