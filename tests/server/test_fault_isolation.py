"""One poison request fails alone, also in one batch of the tokenizer with good ones.

As in michaelfeil/infinity#242 and #609, triton-inference-server/server#2764.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rose_ensemble.large_requests import LARGE
from tests.support.cases import TEA_IDS
from tests.support.oracle import Oracle
from tests.support.processes import processes_mentioning
from tests.support.prometheus import Counters
from tests.support.texts import make_texts
from tests.support.vectors import assert_close
from tests.support.waiting import wait_until
from tests.support.wire import RawGrpc, RawHttp, int_tensor, text_tensor

_TEXTS = make_texts(7, longest=6, seed=13)
_TEA = text_tensor(["tea"], [1, 1])
_POISON = text_tensor([b"tea \xff"], [1, 1])
# Keeps the tokenizer busy while the others queue up, and not the engine: WordPiece looks every piece of such a word
# up before it calls the whole unknown. Small enough not to be tokenized beside the others.
_WORDS = " ".join(["q" * 99 + "\N{GRINNING FACE}"] * 200)
_PLUG = text_tensor([_WORDS], [1, 1])
_MOST_ROUNDS = 40


def test_seven_right_and_one_wrong(raw_grpc: RawGrpc, oracle: Oracle, counters: Counters) -> None:
    def failures() -> int:
        return counters.read("nv_inference_request_failure", model="embed")

    assert len(_WORDS) < LARGE
    before = failures()
    raw_grpc.refusal([_POISON])
    wait_until(lambda: failures() > before, "the failure is counted")
    alone = failures() - before  # 24.10 counts an ensemble's failure twice
    for rounds in range(1, _MOST_ROUNDS + 1):  # noqa: B007 (read after the loop)
        executions = counters.read("nv_inference_exec_count", model="tokenize")
        _one_round(raw_grpc, oracle)
        # The plug is one execution; one more means that all eight went in together.
        if counters.read("nv_inference_exec_count", model="tokenize") == executions + 2:
            break
    else:
        pytest.fail(f"the tokenizer never got eight requests at once in {_MOST_ROUNDS} rounds")
    assert failures() - before == (rounds + 1) * alone


def _one_round(raw_grpc: RawGrpc, oracle: Oracle) -> None:
    with ThreadPoolExecutor(9) as pool:
        pool.submit(raw_grpc.infer, [_PLUG])
        good = [pool.submit(raw_grpc.infer, [text_tensor([text], [1, 1])]) for text in _TEXTS[:4]]
        poison = pool.submit(raw_grpc.refusal, [_POISON])
        good += [pool.submit(raw_grpc.infer, [text_tensor([text], [1, 1])]) for text in _TEXTS[4:]]
    assert "TEXT[0, 0] is not valid UTF-8: byte 4 is 0xff" in poison.result()
    for text, future in zip(_TEXTS, good, strict=True):
        assert_close(future.result()["EMBEDDING"][0, 0], oracle.vector(text))


def test_what_is_refused_leaves_no_memory_behind(raw_grpc: RawGrpc, repository: Path) -> None:
    """A tokenizer shares memory with the server, which never shrinks: 80 MiB of refused texts must not add up there."""
    [tokenizer] = processes_mentioning(repository / "tokenize" / "1" / "model.py")
    large = text_tensor([b"a" * (4 << 20) + b"\xff"], [1, 1])
    raw_grpc.refusal([large])
    before = _shared_bytes(tokenizer)
    for _ in range(20):
        raw_grpc.refusal([large])
    assert _shared_bytes(tokenizer) < before + (16 << 20)


def _shared_bytes(pid: int) -> int:
    """What of the memory shared with the server is in use or was."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    regions = set(re.findall(r"/dev/shm/triton_python_backend_shm_region_\S+", maps))
    assert regions
    return sum(Path(region).stat().st_blocks * 512 for region in regions)


def test_parameters_that_are_not_utf8(raw_http: RawHttp, raw_grpc: RawGrpc, oracle: Oracle) -> None:
    """HTTP hands bytes through that no gRPC client could send."""
    body = (
        b'{"parameters":{"prompt":"caf\xe9"},'
        b'"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,1],"data":["tea"]}]}'
    )
    with ThreadPoolExecutor(5) as pool:
        pool.submit(raw_grpc.infer, [_PLUG])
        good = [pool.submit(raw_grpc.infer, [_TEA]) for _ in range(2)]
        refusal = pool.submit(raw_http.post, "/v2/models/embed/infer", body)
        good += [pool.submit(raw_grpc.infer, [_TEA])]
    status, answer = refusal.result()
    assert status == 400
    assert "parameters are not valid UTF-8: byte 0xe9" in answer["error"]
    for future in good:
        assert_close(future.result()["EMBEDDING"][0, 0], oracle.vector("tea"))


@pytest.mark.parametrize("rows", [(-1, -1), (0, 0), (1, 0), (-3, -1), (2**31 - 1, 2**31 - 1)])
def test_rows_that_mean_nothing_get_an_answer(raw_grpc: RawGrpc, oracle: Oracle, rows: tuple[int, int]) -> None:
    """`-1 x -1` multiplies to one sequence: taken at its word, nobody would ever answer."""
    message = raw_grpc.refusal([int_tensor("WORK", [*rows, -1, 0, 3, *TEA_IDS])], "rose")
    assert f"WORK says {rows[0]} x {rows[1]}" in message
    assert_close(raw_grpc.infer([_TEA])["EMBEDDING"][0, 0], oracle.vector("tea"))
