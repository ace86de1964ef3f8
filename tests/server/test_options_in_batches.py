"""Options stay with their request while requests share tokenizer calls and engine batches.

As in huggingface/tokenizers#537, huggingface/transformers#47085 and caikit/caikit-nlp#369: a limit set on a shared
tokenizer leaks into the calls of others.
"""

from __future__ import annotations

import asyncio

from rose_client import AsyncRoseClient, EmbedOptions, RequestError
from rose_ensemble.server_process import Endpoints
from tests.support.oracle import Oracle
from tests.support.vectors import assert_close, largest_difference

_LONG = "violin " * 300 + "stone " * 300


async def test_every_request_is_cut_its_own_way(server: Endpoints, oracle: Oracle) -> None:
    ways = [
        EmbedOptions(truncation_direction="right"),
        EmbedOptions(truncation_direction="left"),
        EmbedOptions(truncate=False),
    ] * 6
    async with AsyncRoseClient(server.grpc) as client:
        calls = (client.embed_with_counts([_LONG, "tea"], **options) for options in ways)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    right, left = (oracle.vectors([word * 254, "tea"]) for word in ("violin ", "stone "))
    assert largest_difference(right, left) > 1e-2
    for number, outcome in enumerate(outcomes):
        if number % 3 == 2:
            assert isinstance(outcome, RequestError)
            assert "602" in outcome.message
        else:
            assert not isinstance(outcome, BaseException)
            assert outcome.token_counts.tolist() == [256, 3]
            assert_close(outcome.vectors, (right, left)[number % 3])


async def test_every_request_is_normalized_its_own_way(server: Endpoints, oracle: Oracle) -> None:
    prompts, raw = ["", "query: "], oracle.unnormalized("tea")
    assert abs(float((raw**2).sum()) - 1) > 0.1
    async with AsyncRoseClient(server.grpc) as client:
        plain, unscaled = await asyncio.gather(
            asyncio.gather(*(client.embed(["tea"], prompt=prompts[number % 2]) for number in range(24))),
            asyncio.gather(*(client.embed(["tea"], normalize=False) for _ in range(24))),
        )
    for number, vectors in enumerate(plain):
        assert_close(vectors[0], oracle.vector(prompts[number % 2] + "tea"))
    for vectors in unscaled:
        assert_close(vectors[0], raw)
