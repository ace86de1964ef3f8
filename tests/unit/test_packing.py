"""Packed weights: the same products as in float64, and nothing packed that should not be."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import deque
from pathlib import Path

import pytest
import torch

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode
from rose_backend.core import Output
from rose_backend.engine import RoseEngine
from rose_backend.kernels import packing
from rose_backend.kernels.packing import pack, padded_rows, product
from rose_backend.packer import TokenPacker
from tests.support.checkpoints import make_bert
from tests.support.vectors import assert_close
from tests.unit.builders import request_of
from tests.unit.engines import LENGTHS, embed, engine_on, expected, hidden_states, sequences

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(params=[True, False], ids=["packed", "plain"])
def pays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whatever this machine would find, and whatever else is packed in this process."""
    monkeypatch.setattr(packing, "packing_pays", lambda *_: request.param)
    monkeypatch.setattr(packing, "_shapes", set())
    return bool(request.param)


@needs_onednn
@pytest.mark.parametrize("rows", [1, 7, 30, 128, 333])
@pytest.mark.parametrize("shape", [(1152, 384), (384, 1536), (10, 3), (1, 64)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("gelu", [True, False])
@torch.inference_mode()
def test_products(pays: bool, rows: int, shape: tuple[int, int], biased: bool, gelu: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(*shape, generator=generator), torch.randn(shape[0], generator=generator)
    x = torch.randn(rows, shape[1], generator=generator)
    factor = pack(weight)
    assert factor.is_mkldnn is pays
    assert factor.shape == weight.shape
    wanted = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    if gelu:
        wanted = wanted * (1 + torch.erf(wanted / math.sqrt(2))) / 2
    got = product(x, factor, bias if biased else None, gelu=gelu)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6 * shape[1])


@needs_onednn
@torch.inference_mode()
def test_rows_that_are_apart(pays: bool) -> None:
    """What is multiplied may be a part of something wider."""
    weight, wide = torch.randn(24, 48), torch.randn(40, 96)
    got = product(wide[::2, 48:], pack(weight))
    torch.testing.assert_close(got, wide[::2, 48:].contiguous() @ weight.T, rtol=1e-5, atol=1e-4)


@needs_onednn
def test_the_weight_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "packing_pays", lambda *_: True)
    weight = torch.arange(512.0).view(16, 32)
    factor = pack(weight)
    assert torch.equal(weight, torch.arange(512.0).view(16, 32))
    assert torch.equal(factor.to_dense(), weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_numbers_stay_plain(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(packing, "packing_pays", lambda *_: True)
    weight = torch.ones(4, 8, dtype=dtype)
    assert pack(weight) is weight


def test_weights_that_are_not_read_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "packing_pays", lambda *_: True)
    weight = torch.empty(4, 8, device="meta")
    assert pack(weight) is weight


def test_without_onednn_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert packing.packing_pays(8, 4) is False


@needs_onednn
@pytest.mark.parametrize(
    ("few", "many", "pays"), [(0.5, 0.9, True), (1.5, 0.5, False), (0.5, 1.5, False), (1.02, 0.5, True)]
)
def test_packed_where_it_is_quicker_for_texts_and_for_batches(
    monkeypatch: pytest.MonkeyPatch, few: float, many: float, pays: bool
) -> None:
    monkeypatch.setattr(packing, "_pays", {})
    monkeypatch.setattr(packing, "_ratio", lambda rows, _packed, _plain: {32: few, 256: many}[rows])
    assert packing.packing_pays(16, 8) is pays


@needs_onednn
def test_products_are_timed() -> None:
    plain = list(torch.randn(3, 64, 32))
    assert 0.001 < packing._ratio(16, [packing.laid_out(weight) for weight in plain], plain) < 1000


@needs_onednn
@pytest.mark.parametrize("mine", [0.5, 2.0])
def test_whoever_has_the_cores_meanwhile_does_not_decide(monkeypatch: pytest.MonkeyPatch, mine: float) -> None:
    """Most products, packed ones above all, are made to wait for somebody, but not all."""
    plain = list(torch.randn(3, 8, 4))
    packed = [packing.laid_out(weight) for weight in plain]
    made = itertools.count()

    def seconds(_x: torch.Tensor, weight: torch.Tensor, _bias: torch.Tensor) -> float:
        number = next(made)
        disturbed = 1.0 if number in (10, 11) else 3.0 * (1 + number // 2 % 3) * (7.0 if weight.is_mkldnn else 1.0)
        return disturbed * (mine if weight.is_mkldnn else 1.0)

    monkeypatch.setattr(packing, "_seconds", seconds)
    assert packing._ratio(16, packed, plain) == mine


@needs_onednn
def test_a_quiet_machine_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = list(torch.randn(3, 8, 4))
    times: list[float] = []
    monkeypatch.setattr(packing, "_seconds", lambda *_: times.append(1.0) or 1.0)
    assert packing._ratio(16, [packing.laid_out(weight) for weight in plain], plain) == 1.0
    assert len(times) == 2 * 3


@needs_onednn
def test_models_that_load_together_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shape is timed once, by one thread at a time, however often it is asked for meanwhile."""
    monkeypatch.setattr(packing, "_pays", {})
    lock, together = threading.Lock(), threading.Barrier(6)
    found: list[tuple[int, bool]] = []
    answers = iter([True, False, True])

    def timed(width: int, depth: int) -> bool:
        assert lock.acquire(blocking=False)
        time.sleep(0.05)
        lock.release()
        return next(answers)

    def load() -> None:
        together.wait(30)
        for width in (1, 2, 3, 1, 2, 3):
            found.append((width, packing.packing_pays(width, 1)))

    monkeypatch.setattr(packing, "_timed", timed)
    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 36
    assert len(set(found)) == 3


@needs_onednn
def test_timing_draws_from_nobody_elses_numbers() -> None:
    before = torch.get_rng_state()
    packing._timed(16, 8)
    assert torch.equal(torch.get_rng_state(), before)


@needs_onednn
@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16, "meta"], ids=str)
def test_a_programs_defaults_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: torch.dtype | str
) -> None:
    """Products of the engine's own numbers are timed, and it loads."""
    model = make_bert(tmp_path)
    monkeypatch.setattr(packing, "_pays", {})
    seen: set[tuple[torch.dtype, str]] = set()
    laid_out = packing.laid_out

    def watched(weight: torch.Tensor) -> torch.Tensor:
        seen.add((weight.dtype, weight.device.type))
        return laid_out(weight)

    monkeypatch.setattr(packing, "laid_out", watched)
    before = torch.get_default_dtype()
    try:
        if isinstance(default, torch.dtype):
            torch.set_default_dtype(default)
        with torch.device(default) if isinstance(default, str) else contextlib.nullcontext():
            engine = engine_on(tmp_path)
    finally:
        torch.set_default_dtype(before)
    assert seen == {(torch.float32, "cpu")}
    ids = sequences((3, 7, 12), engine.vocab_size)
    assert_close(embed(engine, ids), expected(model, ids, PoolingMode.MEAN))


@needs_onednn
def test_few_numbers_of_rows(pays: bool) -> None:
    pack(torch.randn(8, 4))
    padded = {rows: padded_rows(rows) for rows in range(1, 9000)}
    if not pays:
        assert all(more == rows for rows, more in padded.items())
        return
    assert [padded[rows] for rows in (1, 4, 5, 64, 65, 256, 257, 1024, 1025, 8192)] == [
        4, 4, 8, 64, 72, 256, 288, 1024, 1152, 8192,
    ]  # fmt: skip
    assert all(rows <= more <= max(rows + 3, 1.13 * rows) for rows, more in padded.items())
    assert len({more for more in padded.values() if more <= 1024}) == 64


@needs_onednn
@pytest.mark.parametrize("pooling", [PoolingMode.CLS, PoolingMode.LAST, PoolingMode.MEAN])
def test_nothing_is_multiplied_with_other_numbers_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pays: bool, pooling: PoolingMode
) -> None:
    """Nor where the last layer computes a token of each sequence, and of large batches alone."""
    make_bert(tmp_path)
    engine = engine_on(tmp_path, pooling)
    seen: set[int] = set()
    multiply = torch.ops.mkldnn._linear_pointwise

    def watched(x: torch.Tensor, *others: object) -> torch.Tensor:
        seen.add(len(x))
        return multiply(x, *others)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    for count in (51, 77, 85, 93):  # of 1,020, 1,001, 1,020 and 930 tokens
        embed(engine, sequences((1020 // count,) * count, engine.vocab_size))
    assert bool(seen) is pays
    assert all(rows == padded_rows(rows) for rows in seen)


@needs_onednn
def test_numbers_that_are_not_packed_are_not_padded(tmp_path: Path, pays: bool) -> None:
    """Whatever another engine of the process has packed."""
    make_bert(tmp_path)
    pack(torch.randn(8, 4))
    for dtype, padding in (("float32", 3), ("bfloat16", 0)):
        engine = RoseEngine(EngineConfig(tmp_path, 24, HeadConfig(PoolingMode.MEAN), dtype=dtype))
        batch = TokenPacker(1000, 10).take(deque([request_of(sequences((5,), engine.vocab_size))]))
        assert batch is not None
        assert engine.step(batch).padding == (padding if pays else 0)


@needs_onednn
@pytest.mark.parametrize("pooling", PoolingMode)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_vectors(tmp_path: Path, pays: bool, pooling: PoolingMode, lengths: tuple[int, ...]) -> None:
    """Of batches whose tokens are no multiple of anything, among others."""
    model = make_bert(tmp_path)
    engine = engine_on(tmp_path, pooling)
    ids = sequences(lengths, engine.vocab_size)
    assert_close(embed(engine, ids), expected(model, ids, pooling))
    assert bool(packing._shapes) is pays


@needs_onednn
def test_vectors_of_tokens_and_what_was_padded(tmp_path: Path, pays: bool) -> None:
    make_bert(tmp_path)
    engine = engine_on(tmp_path)
    ids = sequences((3, 7, 12), engine.vocab_size)
    request = request_of(ids)
    request.outputs = Output.FLOAT | Output.TOKEN
    batch = TokenPacker(1000, 10).take(deque([request]))
    assert batch is not None
    rows = engine.step(batch)
    assert rows.padding == (2 if pays else 0)
    results = rows.results()
    assert results[Output.TOKEN].shape[0] == 22
    assert results[Output.FLOAT].shape[0] == 3
    assert_close(results[Output.TOKEN], torch.cat(list(hidden_states(tmp_path, ids))).numpy())
