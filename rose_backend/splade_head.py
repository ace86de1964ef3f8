"""From token vectors to weights of the vocabulary's tokens, in float32: sentence-transformers' `SpladePooling`.

On the head of `BertForMaskedLM`: logits = decoder(norm(activation(dense(h)))). Weights are log(1 + relu(logits)),
of a sequence the largest of its tokens' or their sum.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from rose_backend.config import HeadConfig, PoolingMode, SpladeConfig
from rose_backend.core import Output
from rose_backend.heads import ACTIVATIONS, Head
from rose_backend.kernels.ops import Ops
from rose_backend.kernels.packing import pack, product
from rose_backend.staging import DeviceInputs
from rose_backend.weights import PREFIXES, Weights

_COLUMNS_AT_ONCE = 4096  # of the vocabulary: no matrix of all tokens and the whole of it is ever made
_SMALLEST_NORM = 1e-12


class SpladeHead(Head):
    """A masked language model's head with its weights: a vector as wide as the vocabulary for each sequence.

    Raises:
        CheckpointError: its weights are missing or do not fit.
    """

    def __init__(
        self, config: SpladeConfig, folder: Path, hidden_size: int, vocab_size: int, device: torch.device
    ) -> None:
        pooling = PoolingMode.MAX if config.largest else PoolingMode.MEAN
        super().__init__(HeadConfig(pooling, normalize=False), hidden_size, device)
        self._config = config
        self._activate = ACTIVATIONS[config.inner]
        prefix, width = "cls.predictions.transform.", (hidden_size,)
        head = Weights(folder, prefix + "dense.weight", ("",), device, torch.float32)
        self._transform = [
            pack(head.take(prefix + "dense.weight", shape=width * 2)),
            head.take(prefix + "dense.bias", shape=width),
        ]
        self._norm = [head.take(f"{prefix}LayerNorm.{part}", shape=width) for part in ("weight", "bias")]
        shape = (vocab_size, hidden_size)
        if config.tied:
            name = "embeddings.word_embeddings.weight"
            rows = Weights(folder, name, PREFIXES, device, torch.float32).take(name, shape=shape)
            bias = head.take("cls.predictions.bias", shape=shape[:1])
        else:  # then the bias is its own, too
            rows = head.take("cls.predictions.decoder.weight", shape=shape)
            bias = head.take("cls.predictions.decoder.bias", shape=shape[:1])
        parts = [pack(part) for part in rows.split(_COLUMNS_AT_ONCE)]
        if any(part.is_mkldnn for part in parts):  # another, as a view, would keep the whole matrix
            parts = [part if part.is_mkldnn else part.clone() for part in parts]
        self._columns = list(zip(parts, bias.split(_COLUMNS_AT_ONCE), strict=True))
        self.dim = vocab_size
        self.quantizer.forms |= Output.VOCABULARY
        self.outputs |= Output.VOCABULARY
        self.pools_spans = False

    def __call__(self, ops: Ops, hidden: torch.Tensor, inputs: DeviceInputs) -> torch.Tensor:
        """Weights of a batch, `[num_sequences, vocab_size]` float32; arguments as for `Head`."""
        x = self._activate(product(hidden.float(), *self._transform))
        weight, shift = self._norm
        x = F.layer_norm(x, x.shape[1:], weight, shift, self._config.norm_eps)
        parts = [self._pooled(ops, product(x, rows, bias), inputs) for rows, bias in self._columns]
        weights = torch.cat(parts, dim=1)
        # Not `ops.scale`: a program of it holds a whole row, and these are as wide as the vocabulary.
        size = torch.linalg.vector_norm(weights, dim=1, keepdim=True).clamp_min(_SMALLEST_NORM)
        return weights.div_(torch.where(inputs.normalize[:, None] != 0, size, 1.0))

    def _pooled(self, ops: Ops, logits: torch.Tensor, inputs: DeviceInputs) -> torch.Tensor:
        """Weights of some tokens of the vocabulary."""
        count = len(inputs.normalize)
        if self._config.largest:  # the logarithm keeps the order, so it may follow
            return self._weights(ops.pool_modes(logits, inputs.cu_seqlens, count, self._modes, None))
        means = ops.pool_modes(self._weights(logits), inputs.cu_seqlens, count, self._modes, None)
        return means.mul_(inputs.cu_seqlens[: count + 1].diff()[:, None])

    def _weights(self, logits: torch.Tensor) -> torch.Tensor:
        weights = logits.relu_().log1p_()
        return weights.log1p_() if self._config.twice else weights
