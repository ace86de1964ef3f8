"""The handful of driver calls that a replayed step consists of, made without giving up Python's interpreter lock.

torch's own calls release the lock, and on a busy server each release is some other thread's turn: a step of a dozen
calls then took as many turns, several milliseconds, with the device idle. None of these calls waits for the device.

Signatures: CUDA driver API, https://docs.nvidia.com/cuda/cuda-driver-api/ (all `*Async`, `Record` and `Launch` calls
take their stream last, `cuStreamWaitEvent` first).
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_void_p

import torch

from rose_backend.errors import EngineError

_SIGNATURES: dict[str, list[type]] = {
    "cuMemcpyHtoDAsync_v2": [c_void_p, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_void_p, c_size_t, c_void_p],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuGraphLaunch": [c_void_p, c_void_p],
}


class CudaDriver:
    """Calls on raw handles: `Stream.cuda_stream`, `Event.cuda_event` (0 until its first record), addresses.

    The calling thread must have used torch on the device before, which makes its context current.

    Raises:
        EngineError: from every method, naming the call, where the driver refuses it.
    """

    def __init__(self) -> None:
        library = ctypes.PyDLL("libcuda.so.1")  # unlike CDLL, it keeps the lock
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        self._library = library
        self._to_device = library.cuMemcpyHtoDAsync_v2
        self._to_host = library.cuMemcpyDtoHAsync_v2
        self._record = library.cuEventRecord
        self._wait = library.cuStreamWaitEvent
        self._launch = library.cuGraphLaunch

    def copy_to_device(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """From page-locked host memory."""
        self._check("cuMemcpyHtoDAsync", self._to_device(target, source, num_bytes, stream))

    def copy_to_host(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Into page-locked host memory."""
        self._check("cuMemcpyDtoHAsync", self._to_host(target, source, num_bytes, stream))

    def record(self, event: int, stream: int) -> None:
        """Mark the work that the stream holds now."""
        self._check("cuEventRecord", self._record(event, stream))

    def wait(self, stream: int, event: int) -> None:
        """Let what comes next in the stream wait for a mark."""
        self._check("cuStreamWaitEvent", self._wait(stream, event, 0))

    def launch(self, graph: int, stream: int) -> None:
        """Replay an instantiated graph (`CUDAGraph.raw_cuda_graph_exec`)."""
        self._check("cuGraphLaunch", self._launch(graph, stream))

    def _check(self, call: str, status: int) -> None:
        if status == 0:
            return
        text = c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise EngineError(f"{call} failed with {status}: {reason}")


def recorded_event(*, timed: bool = False) -> torch.cuda.Event:
    """An event that has its handle already; torch makes one at the first record only."""
    event = torch.cuda.Event(enable_timing=timed)
    event.record()
    return event
