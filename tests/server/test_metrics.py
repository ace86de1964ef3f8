"""The metrics page: what a known load adds to it, and that the README's table is the whole of it."""

from __future__ import annotations

import re
from pathlib import Path

import tritonclient.grpc as grpcclient

from tests.support.prometheus import Counters
from tests.support.wire import RawGrpc, embed, int_tensor

_README = Path(__file__).parents[2] / "README.md"


def test_a_known_load(grpc_client: grpcclient.InferenceServerClient, counters: Counters) -> None:
    names = [
        "rose_tokens_total",
        "rose_sequences_total",
        "rose_request_seconds_count",
        "rose_queue_seconds_count",
        "rose_tokenize_requests_total",
        "rose_tokenize_texts_total",
    ]
    before = counters.settled_page()  # of what earlier tests gave up, some may still be run
    counts = [embed(grpc_client, ["tea"] * size).counts.sum() for size in (1, 3)]
    assert counts == [3, 9]  # [CLS] tea [SEP]
    after = counters.page()
    assert [after.read(name) - before.read(name) for name in names] == [12, 4, 2, 2, 2, 4]
    batches = after.read("rose_batches_total")
    assert batches - before.read("rose_batches_total") == 2
    assert after.read("rose_step_seconds_count") == batches
    assert after.read("rose_batch_tokens_bucket", le="+Inf") == batches
    assert after.read("rose_token_budget") in (256, 512, 1024)
    assert after.read_float("rose_step_seconds_sum") > before.read_float("rose_step_seconds_sum")


def test_refusals_are_counted_by_reason(raw_grpc: RawGrpc, counters: Counters) -> None:
    refused = counters.read("rose_refused_requests_total", reason="INVALID_ARG")
    for work in ([1, 2, -1, 0, 5], [1, 1, -1, 0, 1, 30522]):  # values missing; an id outside the vocabulary
        raw_grpc.refusal([int_tensor("WORK", work)], "rose")
    assert counters.read("rose_refused_requests_total", reason="INVALID_ARG") == refused + 2


def test_the_readme_lists_every_metric(counters: Counters) -> None:
    section = _README.read_text().split("## Metrics", 1)[1].split("\n## ", 1)[0]
    documented = set(re.findall(r"`(rose_\w+)`", section))
    served = {re.sub(r"_(bucket|sum|count)$", "", name) for name in counters.page().names()}
    assert documented == served
