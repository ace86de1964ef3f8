"""Mistral (e5-mistral, Linq, SFR): a decoder, every layer of which looks through the sliding window if there is one."""

from __future__ import annotations

from rose_backend.models.base import ModelSource
from rose_backend.models.decoder import Decoder, DecoderConfig

_THETA = 10_000.0  # where the file says none, as the first Mistral's does not


class Mistral(Decoder):
    """See `Decoder`."""

    def __init__(self, source: ModelSource) -> None:
        window = source.values.get("sliding_window")
        super().__init__(
            source,
            DecoderConfig.from_json(
                source.values, window=None if window is None else int(window), default_theta=_THETA
            ),
        )
