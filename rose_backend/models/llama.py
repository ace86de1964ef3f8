"""Llama, causal or bidirectional (`llama_bidirec`: llama-nemotron-embed), with Llama 3's scaled rotation."""

from __future__ import annotations

from rose_backend.models.base import ModelSource
from rose_backend.models.decoder import Decoder, DecoderConfig

_THETA = 10_000.0  # where the file says none, as the first Llama's does not


class Llama(Decoder):
    """See `Decoder`."""

    def __init__(self, source: ModelSource) -> None:
        values = dict(source.values)
        if values.get("num_key_value_heads") is None:  # from before heads were grouped
            values["num_key_value_heads"] = values.get("num_attention_heads")
        super().__init__(source, DecoderConfig.from_json(values, default_theta=_THETA))
