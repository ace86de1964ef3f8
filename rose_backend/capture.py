"""Recording forward passes as CUDA graphs, on a thread and streams of their own.

Whoever runs batches goes on with it meanwhile; on the engine's own thread a recording held everybody up for 30 to
40 ms. Nothing runs on the device while a pass is recorded. A rehearsal does, on another stream than the recording:
libraries have a workspace for each stream, and what was recorded with one may be replayed at the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rose_backend.buckets import Bucket

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CudaRecording:
    """One bucket's graph and its static result."""

    graph: torch.cuda.CUDAGraph
    handle: int  # the instantiated graph, as the driver knows it
    output: torch.Tensor  # [num_sequences, dim] float32, or token vectors: [num_tokens, hidden_size]
    num_bytes: int

    def close(self) -> None:
        """See `Recording`."""
        torch.cuda.current_stream().synchronize()
        self.graph.reset()


class GraphRecorder:
    """Makes one recording after the other; all share a memory pool, since one batch runs at a time.

    Args:
        device: a CUDA device.
        dtype: of the matrix products to be recorded.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._pool = torch.cuda.graph_pool_handle()
        self._ended: dict[Bucket, threading.Event] = {}  # of those that were begun and not asked for since
        self._rehearsals = torch.cuda.Stream(device)
        self._thread = ThreadPoolExecutor(1, "rose-recorder", initializer=self._prepare)

    def begin(
        self, bucket: Bucket, run: Callable[[], torch.Tensor], rehearse: Callable[[], None] | None
    ) -> Future[CudaRecording]:
        """Record what `run` launches.

        Args:
            bucket: for `wait_for`.
            run: called once, on the recorder's thread, with nothing running.
            rehearse: called before, to launch the same kernels on other data: what a first launch does (loading a
                kernel) cannot be recorded. None: they have run.
        """
        recording = self._thread.submit(self._record, bucket, run, rehearse)
        # Not the future itself, which would keep a recording that is evicted meanwhile. Nor set by `_record`: that is
        # never called if the thread could not be prepared.
        ended = self._ended[bucket] = threading.Event()
        recording.add_done_callback(lambda _: ended.set())
        return recording

    def wait_for(self, bucket: Bucket) -> None:
        """Return once no recording of this bucket is under way: what is planned for its attention is being read."""
        ended = self._ended.pop(bucket, None)
        if ended is not None:
            ended.wait()

    def forget_pool(self) -> None:
        """Begin another pool; torch gives one up with its last recording."""
        self._pool = torch.cuda.graph_pool_handle()

    def close(self) -> None:
        """Finish what was begun."""
        self._thread.shutdown()

    def _prepare(self) -> None:
        stream = torch.cuda.Stream(self._device)
        torch.cuda.set_stream(stream)
        # Libraries make a handle for every thread and a workspace for every stream, neither of which can be recorded.
        some = torch.ones((16, 16), dtype=self._dtype, device=self._device)
        F.linear(some, some)
        F.linear(some, some, some[0])
        stream.synchronize()

    def _record(
        self, bucket: Bucket, run: Callable[[], torch.Tensor], rehearse: Callable[[], None] | None
    ) -> CudaRecording:
        if rehearse is not None:
            with torch.cuda.stream(self._rehearsals):
                rehearse()
            self._rehearsals.synchronize()
        return self._capture(bucket, run)

    def _capture(self, bucket: Bucket, run: Callable[[], torch.Tensor]) -> CudaRecording:
        began = time.perf_counter()
        before = self._memory()
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`: that collects garbage and empties caches, which a running server would feel. Of this
        # thread only, since the engine's allocates meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            output = run()
        finally:
            graph.capture_end()
        pool, rest = (after - earlier for after, earlier in zip(self._memory(), before, strict=True))
        num_bytes = pool + max(0, rest)
        seconds = time.perf_counter() - began
        logger.info("graph captured", extra={"bucket": bucket, "bytes": num_bytes, "seconds": round(seconds, 3)})
        return CudaRecording(graph, graph.raw_cuda_graph_exec(), output, num_bytes)

    def _memory(self) -> tuple[int, int]:
        """Bytes of the pool, and of the device what the allocator has not reserved for anybody: graphs themselves.

        The engine may allocate meanwhile, which is no recording's.
        """
        free, total = torch.cuda.mem_get_info(self._device)
        pool = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot(self._pool))
        return pool, total - free - torch.cuda.memory_reserved(self._device)
