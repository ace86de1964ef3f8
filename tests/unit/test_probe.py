"""What a probe makes of the answers it can get, and the count of batches it reads beside."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from rose_ensemble.probe import Observation, Outcome, probe, read_batches
from rose_ensemble.triton_http import TritonHttp
from tests.support.stand_in import stand_in

_PAGE = """\
# HELP rose_batches_total Batches run
# TYPE rose_batches_total counter
rose_batches_total{instance="engine-0-cuda-0_0",model="a_rose"} 40
rose_batches_total{instance="engine-1-cuda-1_0",model="a_rose",version="1"} 2
rose_batches_total{instance="engine-0-cuda-0_0",model="b_a_rose"} 500
rose_batches_total_other{model="a_rose"} 9000
"""


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, '{"outputs":[]}', Observation(Outcome.ANSWERED)),
        (
            500,
            """{"error":"in ensemble 'a', Stub process 'engine-0-auto_0' is not healthy."}""",
            Observation(Outcome.DEAD, "in ensemble 'a', Stub process 'engine-0-auto_0' is not healthy."),
        ),
        (500, '{"error":"the step failed:\\n CUDA error"}', Observation(Outcome.FAULT, "the step failed: CUDA error")),
        (503, '{"error":"the queue is full"}', Observation(Outcome.BUSY, "the queue is full")),
        (404, '{"error":"unknown model"}', Observation(Outcome.ABSENT, "unknown model")),
        (400, '{"error":"TEXT is missing"}', Observation(Outcome.FAULT, "TEXT is missing")),
        (502, "<html>", Observation(Outcome.FAULT, "<html>")),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_answers(status: int, body: str, expected: Observation) -> None:
    asked: list[tuple[str, Any]] = []

    def answer(path: str, posted: Any) -> tuple[int, str]:
        asked.append((path, posted))
        return status, body

    with stand_in(answer) as port:
        assert probe(TritonHttp("127.0.0.1", port), "a", 30.0) == expected
    ((path, posted),) = asked
    assert path == "/v2/models/a/infer"
    assert [tensor["name"] for tensor in posted["inputs"]] == ["TEXT"]
    assert posted["parameters"] == {"probe": True}


def test_a_reranker_is_asked_for_a_score() -> None:
    asked: list[Any] = []

    def answer(path: str, posted: Any) -> tuple[int, str]:
        asked.append(posted)
        return 200, "{}"

    with stand_in(answer) as port:
        assert probe(TritonHttp("127.0.0.1", port), "a", 30.0, scores=True).outcome is Outcome.ANSWERED
    assert [tensor["name"] for tensor in asked[0]["inputs"]] == ["QUERY", "DOCUMENT"]
    assert asked[0]["outputs"] == [{"name": "LOGIT"}]
    assert asked[0]["parameters"] == {"probe": True}


def test_silence_is_busy() -> None:
    over = threading.Event()

    def answer(path: str, posted: Any) -> tuple[int, str]:
        over.wait(30)
        return 200, ""

    with stand_in(answer) as port:
        assert probe(TritonHttp("127.0.0.1", port), "a", 0.2).outcome is Outcome.BUSY
        over.set()


def test_nobody_listening_is_death() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and not listening: refused, and nobody else takes the port
        found = probe(TritonHttp("127.0.0.1", bound.getsockname()[1]), "a", 30.0)
    assert found == Observation(Outcome.DEAD, "HTTP: Connection refused")


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"SSH-2.0-OpenSSH\r\n"])
def test_an_answer_cut_short_says_nothing(sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(sent)

        thread = threading.Thread(target=answer_once)
        thread.start()
        found = probe(TritonHttp("127.0.0.1", listener.getsockname()[1]), "a", 30.0)
        thread.join()
    assert found.outcome is Outcome.BUSY
    assert found.cause.startswith("HTTP: ")


def test_a_proxy_in_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with stand_in(lambda path, posted: (200, "{}")) as port:
        assert probe(TritonHttp("127.0.0.1", port), "a", 30.0).outcome is Outcome.ANSWERED


@pytest.mark.parametrize(("model", "batches"), [("a_rose", 42), ("b_a_rose", 500), ("a.rose", None), ("none", None)])
def test_batches_are_summed_over_the_engines_of_the_model(model: str, batches: int | None) -> None:
    with stand_in(lambda path, posted: (200, _PAGE) if path == "/metrics" else (404, "")) as port:
        assert read_batches(TritonHttp("127.0.0.1", port), model) == batches
