"""Which backend a bucket uses: the installed ones are timed on this card for this model once, and the table kept."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rose_backend.attention.base import (
    Attention,
    AttentionBackend,
    BackendUnavailableError,
    Geometry,
    RaggedLayout,
)
from rose_backend.attention.flash_attention_4 import FlashAttention4Backend
from rose_backend.attention.flashinfer import FlashInferBackend
from rose_backend.attention.sdpa import SdpaBackend
from rose_backend.attention.torch_varlen import TorchVarlenBackend
from rose_backend.attention.triton_short import TritonShortBackend
from rose_backend.attention.triton_stream import TritonStreamBackend
from rose_backend.buckets import Bucket
from rose_backend.cache_folder import cache_folder
from rose_backend.errors import CheckpointError
from rose_backend.kernels.ops import Ops, Rotation

logger = logging.getLogger(__name__)

_CANDIDATES: dict[str, Callable[[Geometry, Ops], AttentionBackend]] = {
    "triton_short": lambda geometry, _: TritonShortBackend(geometry),
    "triton_stream": TritonStreamBackend,
    "torch_varlen": TorchVarlenBackend,
    "flashinfer_fa2": lambda geometry, ops: FlashInferBackend(geometry, ops, "fa2"),
    "flashinfer_fa3": lambda geometry, ops: FlashInferBackend(geometry, ops, "fa3"),
    "flash_attention_4": FlashAttention4Backend,
}
_PACKAGES = ("torch", "flashinfer-python", "flash-attn-4")
_CALLS_PER_GRAPH = 8
_REPEATS = 5
_SHORTEST = 16


@dataclass(frozen=True)
class Shape:
    """A measured case: equal sequences of `length` tokens, `num_tokens` together. Both are powers of two."""

    length: int
    num_tokens: int

    @classmethod
    def of(cls, bucket: Bucket, measured: Iterable[Shape]) -> Shape:
        """The measured case nearest to a bucket: first by its typical length, then by its tokens."""
        typical = min(bucket.max_seqlen, max(1, bucket.num_tokens // bucket.num_sequences))
        return min(
            measured,
            key=lambda shape: (_distance(shape.length, typical), _distance(shape.num_tokens, bucket.num_tokens)),
        )


Ranking = tuple[str, ...]
"""Backends by name, the fastest first."""


class AttentionSelector:
    """Answers with a backend for every bucket.

    Args:
        backends: those that can run here; at least one takes sequences of any length.
        table: the backends' ranking for each measured shape; empty if there is nothing to choose.
    """

    def __init__(self, backends: Sequence[AttentionBackend], table: dict[Shape, Ranking]) -> None:
        self._backends = {backend.name: backend for backend in backends}
        self.table = table

    @property
    def backends(self) -> list[AttentionBackend]:
        """All of them."""
        return list(self._backends.values())

    @property
    def names_in_use(self) -> list[str]:
        """Those that some bucket is given to."""
        return list(self.first_shapes()) or list(self._backends)

    def first_shapes(self) -> dict[str, Shape]:
        """For each backend that is the fastest somewhere, the first shape where it is; empty without a table."""
        firsts: dict[str, Shape] = {}
        for shape, ranking in self.table.items():
            firsts.setdefault(ranking[0], shape)
        return firsts

    def choose(self, bucket: Bucket) -> AttentionBackend:
        """The fastest measured backend for a bucket of this kind that takes its longest sequence."""
        ranking = self.table[Shape.of(bucket, self.table)] if self.table else self._backends
        for name in ranking:
            backend = self._backends[name]
            if backend.longest is None or bucket.max_seqlen <= backend.longest:
                return backend
        raise CheckpointError(f"no attention backend takes sequences of {bucket.max_seqlen} tokens")


def select_attention(
    geometry: Geometry, ops: Ops, wanted: str, num_layers: int, max_length: int, max_tokens: int, *, rotates: bool
) -> AttentionSelector:
    """Find what is installed and decide.

    Args:
        geometry: of the model's attention.
        ops: the steps around it.
        wanted: a backend's name, or `auto` to measure.
        num_layers: how many calls a step makes, against one plan.
        max_length: longest sequence, in tokens.
        max_tokens: most tokens of a batch.
        rotates: whether queries and keys are normed and rotated first, which some backends do in the same launch.

    Raises:
        CheckpointError: the wanted backend is unknown or cannot run here.
    """
    if geometry.dtype is torch.float32:  # no ragged kernel computes in float32
        return AttentionSelector([SdpaBackend(geometry, ops)], {})
    if wanted != "auto":
        return AttentionSelector([_open_wanted(geometry, ops, wanted)], {})
    backends: list[AttentionBackend] = []
    for name, make in _CANDIDATES.items():
        try:
            backends.append(make(geometry, ops))
        except BackendUnavailableError as reason:  # noqa: PERF203 (a handful, once)
            logger.info("attention backend left out", extra={"backend": name, "reason": str(reason)})
    if all(backend.longest is not None for backend in backends):
        backends.append(SdpaBackend(geometry, ops))
    if len(backends) == 1:
        return AttentionSelector(backends, {})
    names = [backend.name for backend in backends]
    cache = _cache_file(geometry, names, num_layers, max_length, max_tokens, rotates)
    table = _load(cache, names)
    if table is None:
        table = measure(backends, geometry, num_layers, _shapes(max_length, max_tokens), rotates=rotates)
        _store(cache, table)
    logger.info("attention chosen", extra={"table": {f"{s.length}x{s.num_tokens}": r[0] for s, r in table.items()}})
    return AttentionSelector(backends, table)


def measure(
    backends: Sequence[AttentionBackend],
    geometry: Geometry,
    num_layers: int,
    shapes: Sequence[Shape],
    *,
    rotates: bool,
) -> dict[Shape, Ranking]:
    """Rank the backends for each shape, counting one plan and `num_layers` calls as a step makes them."""
    table = {}
    for shape in shapes:
        costs = {
            backend.name: step_microseconds(backend, geometry, num_layers, shape, rotates=rotates)
            for backend in backends
            if backend.capturable and (backend.longest is None or shape.length <= backend.longest)
        }
        table[shape] = tuple(sorted(costs, key=costs.__getitem__))
        logger.info("attention measured", extra={"shape": shape, "microseconds": costs})
    return table


def step_microseconds(
    backend: AttentionBackend, geometry: Geometry, num_layers: int, shape: Shape, *, rotates: bool
) -> float:
    """What attention costs a step: the plan's host time plus all layers' device time as graph replays."""
    count = shape.num_tokens // shape.length
    device = geometry.device
    offsets = (torch.arange(count + 1, dtype=torch.int32) * shape.length).pin_memory()
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        cu_seqlens = offsets.to(device)
        width = sum(geometry.heads) * geometry.head_dim
        qkv = torch.randn(shape.num_tokens, width, device=device).to(geometry.dtype)
        rotation = None
        if rotates:
            norm_weights = torch.ones(2, geometry.head_dim, dtype=geometry.dtype, device=device)
            cos_sin = torch.rand(shape.length, geometry.head_dim, device=device)
            positions = torch.arange(shape.length, dtype=torch.int32, device=device).repeat(count)
            rotation = Rotation(norm_weights, cos_sin, positions, 1e-6)
        attention = backend.open(RaggedLayout(cu_seqlens, shape.num_tokens, shape.length))
        plans = []
        for _ in range(_REPEATS):
            began = time.perf_counter()
            attention.plan(offsets)
            plans.append(time.perf_counter() - began)
            stream.synchronize()
        graph = _record_calls(attention, qkv, rotation)
        device_ms = statistics.median(_replay_milliseconds(graph) for _ in range(_REPEATS))
    return statistics.median(plans) * 1e6 + device_ms * 1e3 * num_layers / _CALLS_PER_GRAPH


def _record_calls(attention: Attention, qkv: torch.Tensor, rotation: Rotation | None) -> torch.cuda.CUDAGraph:
    attention(qkv, rotation)
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for _ in range(_CALLS_PER_GRAPH):
            attention(qkv, rotation)
    finally:
        graph.capture_end()
    graph.replay()
    return graph


def _replay_milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))


def _open_wanted(geometry: Geometry, ops: Ops, wanted: str) -> AttentionBackend:
    if wanted not in _CANDIDATES:
        raise CheckpointError(f"attention {wanted!r} is not one of {['auto', *_CANDIDATES]}")
    try:
        return _CANDIDATES[wanted](geometry, ops)
    except BackendUnavailableError as cause:
        raise CheckpointError(f"attention {wanted!r} was asked for: {cause}") from cause


def _shapes(max_length: int, max_tokens: int) -> list[Shape]:
    """Lengths by twos, of which backends differ most up to a thousand tokens, and tokens by fours."""
    longest = max(_SHORTEST, min(max_length, max_tokens))
    lengths = [length for length in (16, 32, 64, 128, 256, 512, 1024, 4096, 16384) if length <= longest]
    return [
        Shape(length, tokens)
        for length in lengths
        for tokens in (length << shift for shift in range(0, 32, 2))
        if tokens <= max(max_tokens, length)
    ]


def _distance(one: int, other: int) -> float:
    """How many doublings lie between two numbers."""
    return abs(math.log2(one / other))


def _cache_file(geometry: Geometry, names: Sequence[str], *limits: int) -> Path:
    """Where the table for this card, model and set of installed packages is kept."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:  # noqa: PERF203 (three of them, once)
            versions.append("")
    card = torch.cuda.get_device_name(geometry.device)
    shape = (
        geometry.num_heads,
        geometry.num_kv_heads,
        geometry.head_dim,
        geometry.causal,
        str(geometry.dtype),
        geometry.window,
    )
    key = hashlib.sha256(repr((card, shape, *names, *versions, *limits)).encode()).hexdigest()[:16]
    return cache_folder() / f"attention-{key}.json"


def _load(path: Path, names: Sequence[str]) -> dict[Shape, Ranking] | None:
    """The table an earlier process measured; None where there is none, or what is there is no table of these names."""
    try:
        table = {Shape(int(length), int(tokens)): tuple(row) for length, tokens, row in json.loads(path.read_text())}
        fits = all(ranking and set(ranking) <= set(names) for ranking in table.values())
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OverflowError, OSError) as cause:
        logger.warning("attention table not read", extra={"path": str(path), "cause": repr(cause)})
        return None
    return table if table and fits else None


def _store(path: Path, table: dict[Shape, Ranking]) -> None:
    """A folder that cannot be written costs the next process a measurement, not this one its start."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps([[s.length, s.num_tokens, names] for s, names in table.items()]))
        temporary.replace(path)
    except OSError as cause:
        logger.warning("attention table not kept", extra={"path": str(path), "cause": repr(cause)})
