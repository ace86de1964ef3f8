"""Qwen2 (gte-Qwen2-*-instruct): a decoder with biased queries, keys and values; causal unless `is_causal` is false."""

from __future__ import annotations

from rose_backend.models.base import ModelSource
from rose_backend.models.decoder import Decoder, DecoderConfig, qwen_windows


class Qwen2(Decoder):
    """See `Decoder`."""

    def __init__(self, source: ModelSource) -> None:
        window, layer_types = qwen_windows(source.values)
        super().__init__(
            source, DecoderConfig.from_json(source.values, qkv_bias=True, window=window, layer_types=layer_types)
        )
