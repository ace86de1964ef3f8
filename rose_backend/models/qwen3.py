"""Qwen3, causal (Qwen3-Embedding) or bidirectional (pplx-embed-v1): a decoder with QK norm.

Three switches make it bidirectional: `is_causal: false`, `use_bidirectional_attention: true`, or pplx-embed's own
`model_type` or class. The stock class in transformers ignores the second.
"""

from __future__ import annotations

from rose_backend.models.base import ModelSource
from rose_backend.models.decoder import Decoder, DecoderConfig, qwen_windows

_HEAD_DIM = 128  # where the file says none


class Qwen3(Decoder):
    """See `Decoder`."""

    def __init__(self, source: ModelSource) -> None:
        values = {"head_dim": _HEAD_DIM, **source.values}
        window, layer_types = qwen_windows(values)
        super().__init__(source, DecoderConfig.from_json(values, qk_norm=True, window=window, layer_types=layer_types))
