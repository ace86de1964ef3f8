"""Bad input fails alone, as the sender's fault, with a message that names the field and the limit.

Every bad request is sent while good ones are on their way; theirs must come out right (infinity#242 and #609,
server#2764).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.cases import HARBOUR
from tests.support.oracle import Oracle
from tests.support.prometheus import Counters
from tests.support.vectors import assert_close
from tests.support.wire import Parameter, RawGrpc, RawHttp, Tensor, int_tensor, text_tensor

_MATES = [HARBOUR, "tea"]
_TEA = text_tensor(["tea"], [1, 1])
_TOKENS = [int_tensor("TOKEN_IDS", [101]), int_tensor("TOKEN_LENGTHS", [1])]

_CASES: Mapping[str, tuple[Sequence[Tensor], Mapping[str, Parameter], Sequence[str]]] = {
    "no texts": ([text_tensor([], [1, 0])], {}, ["TEXT", "[1, 0]"]),
    "wrong dtype": ([Tensor("TEXT", "FP32", [1, 1], np.float32(1).tobytes())], {}, ["TEXT"]),
    "wrong shape": ([text_tensor(["tea"], [1])], {}, ["TEXT", "[1]"]),
    "bad UTF-8": ([text_tensor(["tea", b"caf\xe9!"], [1, 2])], {}, ["TEXT[0, 1]", "UTF-8", "0xe9"]),
    "too long": ([text_tensor(["stone " * 255], [1, 1])], {"truncate": False}, ["257", "256", "truncate"]),
    "too many texts": ([text_tensor(["a"] * 4098, [2, 2049])], {}, ["TEXT", "4098", "4096"]),
    "too many rows": ([text_tensor(["a"] * 4097, [4097, 1])], {}, ["TEXT", "4097", "4096"]),
    "too many bytes": ([text_tensor(["a" * (2**25 + 1)], [1, 1])], {}, ["TEXT", "33554433", "33554432"]),
    "unknown parameter": ([_TEA], {"dimension": 8}, ["dimension", "truncate"]),
    "bad flag": ([_TEA], {"normalize": 3}, ["normalize", "3", "boolean"]),
    "bad choice": ([_TEA], {"truncation_direction": "up"}, ["truncation_direction", "up", "left"]),
    "unknown prompt": ([_TEA], {"prompt_name": "query"}, ["prompt_name", "query"]),
    "two prompts": ([_TEA], {"prompt": "a", "input_type": "query"}, ["prompt", "input_type"]),
    "texts and ids": (
        [_TEA, int_tensor("TOKEN_IDS", [101]), int_tensor("TOKEN_LENGTHS", [1])],
        {},
        ["TEXT", "TOKEN_IDS"],
    ),
    "neither": ([int_tensor("TOKEN_IDS", [101, 102])], {}, ["TEXT", "TOKEN_LENGTHS"]),
}


@pytest.mark.parametrize("case", _CASES)
def test_bad_request_fails_alone(raw_grpc: RawGrpc, oracle: Oracle, case: str) -> None:
    tensors, parameters, words = _CASES[case]
    good = text_tensor(_MATES, [1, 2])
    with ThreadPoolExecutor(8) as pool:
        before = [pool.submit(raw_grpc.infer, [good]) for _ in range(3)]
        bad = pool.submit(raw_grpc.refusal, tensors, "embed", parameters)
        after = [pool.submit(raw_grpc.infer, [good]) for _ in range(3)]
        message = bad.result(timeout=60)
        for mate in before + after:
            assert_close(mate.result(timeout=60)["EMBEDDING"][0], oracle.vectors(_MATES))
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("case", _CASES)
def test_bad_request_over_http(raw_http: RawHttp, case: str) -> None:
    tensors, parameters, words = _CASES[case]
    status, body = raw_http.infer_binary(tensors, parameters)
    assert status == 400
    for word in words:
        assert word in body["error"], body


def test_twenty_good_requests_after_a_poisonous_one(raw_grpc: RawGrpc, oracle: Oracle, counters: Counters) -> None:
    failed = counters.read("rose_requests_total", outcome="failed")
    raw_grpc.refusal([text_tensor([b"\xff"], [1, 1])])
    for _ in range(20):
        assert_close(raw_grpc.infer([_TEA])["EMBEDDING"][0, 0], oracle.vector("tea"))
    assert counters.read("rose_requests_total", outcome="failed") == failed  # it never reached the engine


@pytest.mark.parametrize(
    ("ids", "lengths", "shape", "words"),
    [
        ([101, 30522, 102], [3], [1, 1], ["INPUT_IDS", "30522", "30521"]),
        ([101, -1, 102], [3], [1, 1], ["INPUT_IDS", "-1"]),
        ([101, 102], [3], [1, 1], ["LENGTHS", "3", "2"]),
        ([101] * 257, [257], [1, 1], ["LENGTHS", "257", "256"]),
        ([101, 102], [2, 0], [1, 2], ["LENGTHS", "0"]),
        ([], [2], [1, 2], ["WORK", "1 x 2"]),
    ],
)
def test_the_engine_checks_what_it_is_sent_directly(
    raw_grpc: RawGrpc, oracle: Oracle, ids: list[int], lengths: list[int], shape: list[int], words: list[str]
) -> None:
    message = raw_grpc.refusal([int_tensor("WORK", [*shape, -1, 0, *lengths, *ids])], "rose")
    for word in words:
        assert word in message, message
    assert_close(raw_grpc.infer([_TEA])["EMBEDDING"][0, 0], oracle.vector("tea"))
