"""Running batches on the CPU: ragged, with a few rows of padding behind the last, done when `run` returns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rose_backend.attention.base import Attentions, RaggedLayout
from rose_backend.attention.interrupted import interrupted
from rose_backend.attention.sdpa import SdpaBackend
from rose_backend.core import FLOAT, OF_TOKENS, Batch
from rose_backend.forward import forward
from rose_backend.graphs import GraphCounters
from rose_backend.heads import Head
from rose_backend.kernels.packing import padded_rows
from rose_backend.kernels.torch_ops import TorchOps
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.models.base import RaggedModel
from rose_backend.openmp import give_back_team, threads_wait_awake
from rose_backend.spans import DeviceSpans
from rose_backend.staging import DeviceInputs


class CpuRunner:
    """See `Runner`."""

    def __init__(self, model: RaggedModel, head: Head) -> None:
        self._model = model
        self._head = head
        self._ops = TorchOps()
        self.has_teams = torch.get_num_threads() > 1 and threads_wait_awake()
        self._multiplies_packed = model.geometries[0].dtype == torch.float32  # another engine's weights may be
        self._backends = [SdpaBackend(geometry, self._ops) for geometry in model.geometries]

    @torch.inference_mode()
    def run(self, batch: Batch, between_layers: Callable[[], None] | None = None) -> LazyTensor:
        """See `Runner`."""
        input_ids, offsets = batch.input_ids, batch.cu_seqlens
        num_tokens = padded_rows(batch.num_tokens) if self._multiplies_packed else batch.num_tokens
        padding = num_tokens - batch.num_tokens
        if padding:  # as one more sequence, the last, to which nothing attends
            input_ids = np.concatenate((input_ids, np.zeros(padding, np.int32)))
            offsets = np.append(offsets, np.int32(num_tokens))
        cu_seqlens = torch.from_numpy(offsets)
        layout = RaggedLayout(cu_seqlens, num_tokens, max(batch.max_seqlen, padding))
        attends = Attentions.open(self._backends, layout)
        attends.plan(torch.from_numpy(batch.cu_seqlens))
        if between_layers is not None:
            attends = interrupted(attends, between_layers)
        fields = {name: torch.from_numpy(values) for name, values in batch.fields.items()}
        inputs = DeviceInputs(torch.from_numpy(input_ids), cu_seqlens, torch.from_numpy(batch.normalize), fields)
        if not batch.keeps_tokens:
            vectors = forward(self._model, self._ops, inputs, attends, self._head)
            if batch.outputs is FLOAT:
                return LazyTensor(vectors.numpy(), padding=padding)
            forms = self._head.quantizer(self._ops, vectors, inputs.normalize, batch.outputs)
        else:
            hidden = forward(self._model, self._ops, inputs, attends, None)
            table = batch.spans
            spans = None if table is None else DeviceSpans.of(torch.from_numpy(table), table.shape[1])
            forms = self._head.forms(self._ops, hidden, inputs, spans, batch.outputs)
            forms = {form: x[: batch.num_tokens] if form in OF_TOKENS else x for form, x in forms.items()}
        return LazyTensor({form: values.numpy() for form, values in forms.items()}, padding=padding)

    @property
    def graph_counters(self) -> GraphCounters:
        """See `Runner`: every batch is eager here, and not counted."""
        return GraphCounters()

    def idle(self) -> bool:
        """See `Runner`."""
        return False

    def leave(self) -> None:
        """See `Runner`."""
        if self.has_teams:
            give_back_team()

    def close(self) -> None:
        """See `Runner`."""
