"""From token vectors to the logit of a pair, in float32: the heads of rerankers, as transformers has them.

`BertForSequenceClassification`, `RobertaClassificationHead`, `ModernBertForSequenceClassification`,
`GenericForSequenceClassification`; and of language models the difference of two logits (the card of Qwen3-Reranker).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from rose_backend.config import HeadConfig, ScoreConfig, ScoreHead
from rose_backend.core import Field
from rose_backend.heads import ACTIVATIONS, Head
from rose_backend.kernels.ops import Ops
from rose_backend.staging import DeviceInputs
from rose_backend.tensor_files import TensorFiles
from rose_backend.weights import PREFIXES, Weights

_Step = Callable[[torch.Tensor], torch.Tensor]
_LM_HEAD = "lm_head.weight"
_BARE = ("",)  # transformers saves a head beside the model it belongs to, not under that model's name


class ScoringHead(Head):
    """A reranker's head with its weights: a vector of one element, the logit, for each sequence.

    Raises:
        CheckpointError: its weights are missing, or are not for one label.
    """

    def __init__(self, config: ScoreConfig, folder: Path, hidden_size: int, device: torch.device) -> None:
        super().__init__(HeadConfig(config.pooling, normalize=False), hidden_size, device)
        self._steps = _LOADERS[config.head](config, folder, hidden_size, device)
        self.dim = 1
        self.fields = (Field.TYPE_FROM,) if config.token_types else ()

    def __call__(self, ops: Ops, hidden: torch.Tensor, inputs: DeviceInputs) -> torch.Tensor:
        """Logits of a batch, `[num_sequences, 1]` float32; arguments as for `Head`."""
        x = ops.pool_modes(hidden, inputs.cu_seqlens, len(inputs.normalize), self._modes, None)
        for step in self._steps:
            x = step(x)
        return x


def _linear(weights: Weights, name: str, out_features: int, in_features: int, *, bias: bool = True) -> _Step:
    weight = weights.take(name + ".weight", shape=(out_features, in_features))
    return _product(weight, weights.take(name + ".bias", shape=(out_features,)) if bias else None)


def _product(weight: torch.Tensor, bias: torch.Tensor | None = None) -> _Step:
    return lambda x: F.linear(x, weight, bias)


def _norm(weights: Weights, name: str, size: int, eps: float, *, bias: bool) -> _Step:
    weight = weights.take(name + ".weight", shape=(size,))
    shift = weights.take(name + ".bias", shape=(size,)) if bias else None
    return lambda x: F.layer_norm(x, weight.shape, weight, shift, eps)


def _pooler(config: ScoreConfig, folder: Path, size: int, device: torch.device) -> list[_Step]:
    pooler = Weights(folder, "pooler.dense.weight", PREFIXES, device, torch.float32)
    outer = Weights(folder, "classifier.weight", _BARE, device, torch.float32)
    inner = ACTIVATIONS[config.inner]
    return [_linear(pooler, "pooler.dense", size, size), inner, _linear(outer, "classifier", 1, size)]


def _classifier(config: ScoreConfig, folder: Path, size: int, device: torch.device) -> list[_Step]:
    weights = Weights(folder, "classifier.out_proj.weight", _BARE, device, torch.float32)
    inner = ACTIVATIONS[config.inner]
    return [_linear(weights, "classifier.dense", size, size), inner, _linear(weights, "classifier.out_proj", 1, size)]


def _prediction(config: ScoreConfig, folder: Path, size: int, device: torch.device) -> list[_Step]:
    weights = Weights(folder, "head.dense.weight", _BARE, device, torch.float32)
    return [
        _linear(weights, "head.dense", size, size, bias=config.bias),
        ACTIVATIONS[config.inner],
        _norm(weights, "head.norm", size, config.norm_eps, bias=config.norm_bias),
        _linear(weights, "classifier", 1, size),
    ]


def _score(config: ScoreConfig, folder: Path, size: int, device: torch.device) -> list[_Step]:
    weights = Weights(folder, "score.weight", _BARE, device, torch.float32)
    return [_linear(weights, "score", 1, size, bias=config.bias)]


def _tokens(config: ScoreConfig, folder: Path, size: int, device: torch.device) -> list[_Step]:  # noqa: ARG001
    # A head that the file has besides is the model's, as in transformers: then it is the configuration that errs.
    tied = config.tied and _LM_HEAD not in TensorFiles(folder)
    name, prefixes = ("embed_tokens.weight", PREFIXES) if tied else (_LM_HEAD, _BARE)
    wanted, other = Weights(folder, name, prefixes, device, torch.float32).rows(name, config.token_ids)
    return [_product((wanted - other)[None])]


_LOADERS = {
    ScoreHead.POOLER: _pooler,
    ScoreHead.CLASSIFIER: _classifier,
    ScoreHead.PREDICTION: _prediction,
    ScoreHead.SCORE: _score,
    ScoreHead.TOKENS: _tokens,
}
