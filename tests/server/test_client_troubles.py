"""The Python clients when nobody answers, and when a call is given up."""

from __future__ import annotations

import asyncio

import pytest

from rose_client import AsyncRoseClient, ChunkLimits, RequestError, RoseClient
from rose_ensemble.server_process import Endpoints
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until


def test_nobody_there() -> None:
    port = Endpoints.free("127.0.0.1").grpc_port
    with RoseClient(f"127.0.0.1:{port}") as client, pytest.raises(RequestError) as refused:
        client.embed(["tea"])
    assert refused.value.status == "UNAVAILABLE"
    assert "failed to connect" in refused.value.message


@pytest.mark.parametrize("count", [1, 8])
async def test_nobody_at_one_of_two(server: Endpoints, oracle: Oracle, count: int) -> None:
    """One text travels as one request, eight in several chunks."""
    nowhere = f"127.0.0.1:{Endpoints.free('127.0.0.1').grpc_port}"
    texts = make_texts(count, longest=10, seed=5)
    with RoseClient([nowhere, server.grpc], limits=ChunkLimits(max_texts=2)) as client:
        assert_close(await asyncio.to_thread(client.embed, texts), oracle.vectors(texts))
    async with AsyncRoseClient([nowhere, server.grpc], limits=ChunkLimits(max_texts=2)) as asyncio_client:
        assert_close(await asyncio_client.embed(texts), oracle.vectors(texts))


async def test_a_cancelled_call_harms_nobody(server: Endpoints, oracle: Oracle, counters: Counters) -> None:
    batches = counters.read("rose_batches_total")
    async with AsyncRoseClient(server.grpc) as client:
        call = asyncio.ensure_future(client.embed(["stone " * 250] * 50))
        await asyncio.to_thread(
            wait_until, lambda: counters.read("rose_batches_total") > batches, "the call is being worked on"
        )
        mate = asyncio.ensure_future(client.embed(["tea"]))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert_close((await mate)[0], oracle.vector("tea"))
