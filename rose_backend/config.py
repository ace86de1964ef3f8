"""Frozen configuration of the engine. Strings from files and flags are parsed at the edge, never here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rose_backend.errors import CheckpointError


class PoolingMode(str, Enum):
    """How token vectors become one vector; names as in sentence-transformers' `pooling_mode`.

    With h the vectors of a sequence's n pooled tokens, and k each one's place in the whole sequence, from 0.
    """

    CLS = "cls"
    """The first one."""
    MAX = "max"
    """The largest of each element."""
    MEAN = "mean"
    """sum(h) / n."""
    MEAN_SQRT = "mean_sqrt_len_tokens"
    """sum(h) / sqrt(n)."""
    WEIGHTED_MEAN = "weightedmean"
    """sum((k + 1) * h) / sum(k + 1)."""
    LAST = "lasttoken"
    """The last one."""


class Activation(str, Enum):
    """What follows a projection; names as in `torch.nn`."""

    IDENTITY = "Identity"
    TANH = "Tanh"
    GELU = "GELU"
    RELU = "ReLU"
    SILU = "SiLU"
    SIGMOID = "Sigmoid"


@dataclass(frozen=True)
class DenseConfig:
    """One Dense module: `activation(x @ weight.T + bias)`, plus the (projected) input where `residual`.

    Attributes:
        folder: holds the weights, `model.safetensors` or `pytorch_model.bin`.
        in_features: width of what comes in.
        out_features: width of what goes out.
        bias: whether the projection has one.
        activation: applied to the projection.
        residual: whether the input is added; it is projected too where the widths differ.
    """

    folder: Path
    in_features: int
    out_features: int
    bias: bool = True
    activation: Activation = Activation.TANH
    residual: bool = False


@dataclass(frozen=True)
class Ranges:
    """Smallest and largest value of each element of vectors scaled in one way, for int8 codes.

    Attributes:
        scaling: the way; see `Request.scaling`.
        low: of each element of a whole vector.
        high: as many.
    """

    scaling: int
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class TokenHeads:
    """Heads that give each token something of its own.

    Attributes:
        sparse: file of the projection to a token's weight; None: there is none.
        multi_vector: file of the projection to a token's vector; None: that is the last layer's.
        weightless: tokens without a weight, whatever the projection says.
    """

    sparse: Path | None = None
    multi_vector: Path | None = None
    weightless: tuple[int, ...] = ()


@dataclass(frozen=True)
class SpladeConfig:
    """How a masked language model's logits become weights of the vocabulary's tokens.

    Attributes:
        largest: whether a weight is the largest over a sequence's tokens, rather than the sum.
        twice: whether the logarithm is taken twice.
        inner: what follows the head's first projection.
        norm_eps: of the norm after it.
        tied: whether the rows of the second are those of the input embeddings.
    """

    largest: bool = True
    twice: bool = False
    inner: Activation = Activation.GELU
    norm_eps: float = 1e-12
    tied: bool = True


@dataclass(frozen=True)
class HeadConfig:
    """What happens after the last layer.

    Attributes:
        pooling: how a sequence's token vectors are pooled.
        normalize: whether the checkpoint ends in a Normalize module; a request may override it.
        also: further ways of pooling, whose vectors are appended in this order.
        include_prompt: whether the tokens of a prompt are pooled; they take part in attention either way.
        dense: projections, in order, of the pooled vector.
        tanh_codes: whether int8 codes and bits follow pplx-embed's rules instead of sentence-transformers'.
        ranges: of the elements, for int8 codes by the latter; a way of scaling each.
        tokens: heads for single tokens.
        splade: of a checkpoint whose vectors are weights of the vocabulary's tokens; nothing above is then looked at.
    """

    pooling: PoolingMode = PoolingMode.MEAN
    normalize: bool = True
    also: tuple[PoolingMode, ...] = ()
    include_prompt: bool = True
    dense: tuple[DenseConfig, ...] = ()
    tanh_codes: bool = False
    ranges: tuple[Ranges, ...] = ()
    tokens: TokenHeads = TokenHeads()
    splade: SpladeConfig | None = None

    @property
    def modes(self) -> tuple[PoolingMode, ...]:
        """All ways of pooling, in the order of their vectors."""
        return (self.pooling, *self.also)

    def dim(self, hidden_size: int) -> int:
        """Width of a vector for this width of a token's."""
        return self.dense[-1].out_features if self.dense else hidden_size * len(self.modes)


class ScoreHead(str, Enum):
    """How a reranker's score is computed from token vectors; `h` is the pooled one."""

    POOLER = "pooler"
    """BERT: classifier(tanh(pooler(h)))."""
    CLASSIFIER = "classifier"
    """RoBERTa and its kin: out_proj(tanh(dense(h)))."""
    PREDICTION = "prediction"
    """ModernBERT: classifier(norm(activation(dense(h))))."""
    SCORE = "score"
    """A decoder turned classifier: h @ score."""
    TOKENS = "tokens"
    """A language model: the logit of one token less that of another, and no other row of its vocabulary."""


@dataclass(frozen=True)
class ScoreConfig:
    """What makes a checkpoint a reranker: one number, the logit, for each pair of texts.

    Attributes:
        head: how the logit is computed.
        pooling: CLS, MEAN or LAST: the token vectors it is computed from.
        activation: from a logit to a score.
        inner: what is between the two projections of a head that has two.
        bias: whether the first of them has one.
        norm_eps: of the norm between them.
        norm_bias: whether that norm has a bias.
        token_ids: of `TOKENS`: the token whose logit counts, and the one whose logit is taken off.
        tied: of `TOKENS`: whether their rows are those of the input embeddings, where the file has no others.
        token_types: whether the second text's tokens are of type 1.
    """

    head: ScoreHead
    pooling: PoolingMode
    activation: Activation = Activation.SIGMOID
    inner: Activation = Activation.TANH
    bias: bool = True
    norm_eps: float = 1e-5
    norm_bias: bool = False
    token_ids: tuple[int, int] = (0, 0)
    tied: bool = False
    token_types: bool = False


@dataclass(frozen=True)
class GraphConfig:
    """Limits of graph capture on a GPU.

    Attributes:
        memory_budget: bytes all recordings may hold; the least recently used ones go first.
        largest_bucket: batches of more tokens run eagerly; 0 turns capture off, None has the limit measured at start.
    """

    memory_budget: int = 4 * 2**30
    largest_bucket: int | None = None


@dataclass(frozen=True)
class QueueConfig:
    """Bounds of the queue in front of an engine.

    Attributes:
        max_tokens: tokens that may wait; requests beyond them are refused.
        max_requests: requests that may wait.
        lanes: whether bulk requests queue apart from small ones; otherwise all are served in the order of arrival.
    """

    max_tokens: int = 2 * 2**20
    max_requests: int = 8192
    lanes: bool = True


@dataclass(frozen=True)
class EngineConfig:
    """One checkpoint on one device.

    Attributes:
        checkpoint: folder with `config.json` and weights; see `TensorFiles`.
        max_length: longest sequence served, in tokens, special tokens included.
        head: pooling, projections and normalisation.
        device: a torch device string, e.g. `cpu` or `cuda:0`.
        token_budget: most tokens in one batch, but for a single sequence that is longer. None: measured at
            start, the most that still win throughput within 10 ms; of bulk work 5 ms beside others and 250 ms alone.
        max_sequences: most sequences in one batch.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: float32 on the CPU, bfloat16 on a GPU.
        attention: a backend's name, or `auto` to measure and choose per bucket.
        graphs: capture limits.
        allow_unsafe_dtype: whether float16 may be asked for of a family whose numbers are known to leave its range.
        score: of a reranker, whose vectors have one element, the logit; then `head` is not looked at.
        cpu_threads: most threads that compute on a CPU, if torch would use more; None: as many as those.

    Raises:
        CheckpointError: a limit is not positive.
    """

    checkpoint: Path
    max_length: int
    head: HeadConfig
    device: str = "cpu"
    token_budget: int | None = None
    max_sequences: int = 512
    dtype: str = "auto"
    attention: str = "auto"
    graphs: GraphConfig = GraphConfig()
    allow_unsafe_dtype: bool = False
    score: ScoreConfig | None = None
    cpu_threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_sequences", "token_budget", "cpu_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CheckpointError(f"{name} is {value}: it must be at least 1")
