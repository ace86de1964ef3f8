"""How a chunk travels."""

from __future__ import annotations

import pytest

from rose_client import ChunkLimits
from rose_client.chunking import split
from rose_client.exchange import EmbedExchange, ScoreExchange


@pytest.mark.parametrize("exchange", [EmbedExchange("m", {}), ScoreExchange("m", b"tea?", {})], ids=["embed", "score"])
def test_parts_of_a_split_call_are_bulk_work(exchange: EmbedExchange | ScoreExchange) -> None:
    """However small a part: engines would take it for a query."""
    [whole] = split([b"tea"], ChunkLimits())
    part, _ = split([b"tea", b"pot"], ChunkLimits(max_texts=1))
    assert "lane" not in exchange.inference(whole, 1.0).request.parameters
    assert exchange.inference(part, 1.0).request.parameters["lane"].string_param == "bulk"


@pytest.mark.parametrize(
    "exchange",
    [EmbedExchange("m", {"lane": "online"}), ScoreExchange("m", b"tea?", {"lane": "online"})],
    ids=["embed", "score"],
)
def test_a_lane_that_was_asked_for_is_kept(exchange: EmbedExchange | ScoreExchange) -> None:
    part, _ = split([b"tea", b"pot"], ChunkLimits(max_texts=1))
    assert exchange.inference(part, 1.0).request.parameters["lane"].string_param == "online"
