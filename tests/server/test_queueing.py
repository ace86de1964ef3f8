"""While bulk work keeps the engine busy: lanes, deadlines and cancelled requests, by what the engine then ran."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from rose_ensemble.server_process import Endpoints
from rose_ensemble.work import NO_STAMP, Work
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.support.wire import Answer, embed, text_input

pytestmark = pytest.mark.alone

_BULK = make_texts(100, longest=110, seed=21)
_CLIENTS = 4


class Bulk:
    """Large requests that were answered, and the seconds that each took."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seconds: list[float] = []

    @property
    def sequences(self) -> int:
        """How many texts the engine ran for them."""
        return len(self.answers) * len(_BULK)


@contextmanager
def bulk_under_way(server: Endpoints, counters: Counters) -> Iterator[Bulk]:
    """From when the engine works on large requests; however fast it is, two of them or more wait until the end."""
    bulk, batches, enough = Bulk(), counters.read("rose_batches_total"), threading.Event()

    def run() -> None:
        with grpcclient.InferenceServerClient(server.grpc) as client:
            while not enough.is_set():
                began = time.monotonic()
                answer = embed(client, _BULK)
                bulk.seconds.append(time.monotonic() - began)
                bulk.answers.append(answer)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        clients = [pool.submit(run) for _ in range(_CLIENTS)]
        try:
            wait_until(lambda: counters.read("rose_batches_total") > batches, "bulk requests are being worked on")
            yield bulk
        finally:
            enough.set()
            for client in clients:
                client.result()


def test_a_query_does_not_wait_for_a_bulk_request(
    server: Endpoints, grpc_client: grpcclient.InferenceServerClient, counters: Counters, oracle: Oracle
) -> None:
    with bulk_under_way(server, counters) as bulk:
        began = time.monotonic()
        answer = embed(grpc_client, ["a kettle boils water"])
        took = time.monotonic() - began
    assert_close(answer.rows[0], oracle.vector("a kettle boils water"))
    assert took < statistics.median(bulk.seconds) / 2
    for large in bulk.answers:
        assert_close(large.rows[:5], oracle.vectors(_BULK[:5]))


def test_who_sends_a_line_does_not_wait_while_thousands_of_texts_are_tokenized(
    server: Endpoints, grpc_client: grpcclient.InferenceServerClient, oracle: Oracle
) -> None:
    """Nor do the many texts of a request, or what is wrong with one, change another's answer."""
    words = "the harbour wall at low tide "
    large, chunked = [words * 300] * 300, [words * 100] * 400
    lines = [f"line {number}" for number in range(20)]
    answers: queue.Queue[tuple[str, grpcclient.InferResult | None, InferenceServerException | None]] = queue.Queue()

    def send(name: str, texts: list[str], parameters: dict[str, bool] | None = None) -> None:
        def answered(result: grpcclient.InferResult | None, error: InferenceServerException | None) -> None:
            answers.put((name, result, error))

        tensor = text_input(grpcclient, texts)
        client.async_infer("tokenize", [tensor], answered, parameters=parameters)

    with grpcclient.InferenceServerClient(server.grpc) as client:
        send("large", large)
        send("too long", large, {"truncate": False})
        send("many", chunked)
        for line in lines:
            send(line, [line])
        found = [answers.get(timeout=60) for _ in range(len(lines) + 3)]
    names = [name for name, _, _ in found]
    assert set(names[:20]) == set(lines)
    assert sorted(names[20:]) == ["large", "many", "too long"]
    errors = {name: str(error) for name, _, error in found if error is not None}
    assert set(errors) == {"too long"}
    assert "TEXT element 0 has 1802 tokens: the limit is 256" in errors["too long"]
    sizes = {"large": len(large), "many": len(chunked)}
    for name, result, _ in found:
        if result is not None:
            counts = [256] * sizes[name] if name in sizes else [oracle.token_count(name)]
            assert result.as_numpy("TOKEN_COUNT").tolist() == [counts]


def test_a_large_request_counts_once(grpc_client: grpcclient.InferenceServerClient, counters: Counters) -> None:
    """It is one call of the tokenizer, on whichever thread."""
    names = ("rose_tokenize_requests_total", "rose_tokenize_texts_total", "rose_tokenize_seconds_count")
    before = counters.page()
    grpc_client.infer("tokenize", [text_input(grpcclient, ["harbour " * 500] * 20)])
    grpc_client.infer("tokenize", [text_input(grpcclient, ["harbour"] * 2)])
    after = counters.page()
    assert [after.read(name) - before.read(name) for name in names] == [2, 22, 2]


def test_the_parameter_lane_says_where_a_request_queues(
    server: Endpoints, grpc_client: grpcclient.InferenceServerClient, counters: Counters
) -> None:
    before = counters.page()
    embed(grpc_client, ["tea"], lane="bulk")
    embed(grpc_client, ["tea"] * 40)  # by its size
    embed(grpc_client, ["tea"] * 40, lane="online")
    after = counters.page()
    for lane, served in (("online", 1), ("bulk", 2)):
        of_lane = {"lane": lane, "outcome": "served"}
        assert after.read("rose_requests_total", **of_lane) - before.read("rose_requests_total", **of_lane) == served
    with pytest.raises(InferenceServerException, match=r"lane.*'express'.*\['online', 'bulk'\]"):
        embed(grpc_client, ["tea"], lane="express")


def test_a_health_check_is_answered_as_others_are(grpc_client: grpcclient.InferenceServerClient) -> None:
    assert np.array_equal(embed(grpc_client, ["tea"], probe=True).rows, embed(grpc_client, ["tea"]).rows)
    with pytest.raises(InferenceServerException, match=r"probe.*'yes'"):
        embed(grpc_client, ["tea"], probe="yes")


def test_a_request_that_expires_in_the_queue_never_reaches_the_engine(
    server: Endpoints, grpc_client: grpcclient.InferenceServerClient, counters: Counters
) -> None:
    before = counters.page()
    with bulk_under_way(server, counters) as bulk:
        with pytest.raises(InferenceServerException, match="timeout expired while it was queued") as refused:
            grpc_client.infer(
                "embed", [text_input(grpcclient, ["tea"] * 5)], parameters={"lane": "bulk"}, timeout=100_000
            )
        assert "UNAVAILABLE" in str(refused.value.status())
    after = counters.page()
    assert after.read("rose_requests_total", outcome="expired") == 1 + before.read(
        "rose_requests_total", outcome="expired"
    )
    assert after.read("rose_sequences_total") == before.read("rose_sequences_total") + bulk.sequences


def test_a_cancelled_request_never_reaches_the_engine(
    server: Endpoints, grpc_client: grpcclient.InferenceServerClient, counters: Counters
) -> None:
    """Called directly: a step of an ensemble is not told by this server."""
    work = Work((1, 5), NO_STAMP, np.full(5, 3, np.int32), np.array([101, 2312, 102] * 5, np.int32)).pack()
    tensor = grpcclient.InferInput("WORK", list(work.shape), "INT32")
    tensor.set_data_from_numpy(work)
    sequences = counters.read("rose_sequences_total")
    cancelled = counters.read("rose_requests_total", outcome="cancelled")
    with bulk_under_way(server, counters) as bulk, pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        grpc_client.infer("rose", [tensor], parameters={"lane": "bulk"}, client_timeout=0.1)
    wait_until(
        lambda: counters.read("rose_requests_total", outcome="cancelled") == cancelled + 1, "it is counted as cancelled"
    )
    assert counters.read("rose_sequences_total") == sequences + bulk.sequences


def test_queues_are_empty_afterwards(counters: Counters) -> None:
    page = counters.page()
    for lane in ("online", "bulk"):
        assert page.read("rose_queued_tokens", lane=lane) == 0
        assert page.read("rose_queued_requests", lane=lane) == 0
