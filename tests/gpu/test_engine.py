"""The engine on a GPU: numbers against transformers in float32, recordings against eager, no hidden waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from safetensors.torch import save_file
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model

from rose_backend.buckets import Bucket, covering_buckets
from rose_backend.calibration import synthetic_batch
from rose_backend.capture import GraphRecorder
from rose_backend.config import (
    Activation,
    DenseConfig,
    EngineConfig,
    GraphConfig,
    HeadConfig,
    PoolingMode,
    Ranges,
    TokenHeads,
)
from rose_backend.core import FLOAT, Field, Float32Array, Int32Array, Output, Request, Results, Spans
from rose_backend.cuda_runner import CudaRunner
from rose_backend.engine import RoseEngine
from rose_backend.lazy_tensor import LazyTensor
from rose_backend.packer import TokenPacker
from rose_backend.startup import CUDA_SIZES

_LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 500, 512]
_VOCAB = 1000
_WEIGHTS = "model.safetensors"


def _qwen3(folder: Path, *, causal: bool) -> Path:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=_VOCAB,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=600,
    )
    config.is_causal = causal
    Qwen3Model(config).save_pretrained(folder)
    return folder


def _bert(folder: Path) -> Path:
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=_VOCAB, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8
    )
    BertModel(config).save_pretrained(folder)
    return folder


def _config(folder: Path, pooling: PoolingMode, **changes: object) -> EngineConfig:
    config = EngineConfig(folder, 512, HeadConfig(pooling, normalize=True), "cuda:0", token_budget=4096)
    return replace(config, **changes)  # type: ignore[arg-type]


def _sequences(lengths: Sequence[int], seed: int = 0) -> list[Int32Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, _VOCAB, length, dtype=np.int32) for length in lengths]


def _launch(engine: RoseEngine, sequences: Sequence[Int32Array]) -> list[tuple[Int32Array, LazyTensor]]:
    queue = deque(Request(ids, np.array([len(ids)], np.int32), lambda _: None) for ids in sequences)
    packer = TokenPacker(engine.budgets.tokens, engine.config.max_sequences)
    launched = []
    while (batch := packer.take(queue)) is not None:
        launched.append((batch.order, engine.step(batch)))
    return launched


def _embed(engine: RoseEngine, sequences: Sequence[Int32Array]) -> Float32Array:
    parts = []
    for order, rows in _launch(engine, sequences):
        unsorted = np.empty((len(order), engine.dim), np.float32)
        unsorted[order] = rows.numpy()
        parts.append(unsorted)
    return np.concatenate(parts)


def _oracle(folder: Path, kind: type, sequences: Sequence[Int32Array], pooling: PoolingMode) -> Float32Array:
    model = kind.from_pretrained(folder, dtype=torch.float32).cuda().eval()  # type: ignore[attr-defined]
    rows = []
    with torch.inference_mode():
        for ids in sequences:
            hidden = model(torch.from_numpy(ids).long()[None].cuda()).last_hidden_state[0]
            pooled = {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[pooling.value]
            rows.append(torch.nn.functional.normalize(pooled, dim=0).cpu().numpy())
    return np.stack(rows)


@pytest.mark.parametrize(
    ("make", "pooling"), [("causal", PoolingMode.LAST), ("bidirectional", PoolingMode.MEAN), ("bert", PoolingMode.CLS)]
)
def test_against_transformers(tmp_path: Path, make: str, pooling: PoolingMode) -> None:
    kind = BertModel if make == "bert" else Qwen3Model
    folder = _bert(tmp_path) if make == "bert" else _qwen3(tmp_path, causal=make == "causal")
    engine = RoseEngine(_config(folder, pooling))
    sequences = _sequences(_LENGTHS)
    expected = _oracle(folder, kind, sequences, pooling)
    eager = _embed(engine, sequences)
    _embed(engine, sequences)
    replayed = _embed(engine, sequences)
    alone = np.concatenate([_embed(engine, [ids]) for ids in sequences])
    engine.close()
    cosines = (replayed * expected).sum(1)
    assert cosines.min() >= 0.999
    assert np.median(cosines) >= 0.9999
    assert np.array_equal(eager, replayed)  # the same kernels on the same bucket
    assert (alone * replayed).sum(1).min() >= 0.9995


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes(tmp_path: Path, dtype: str) -> None:
    folder = _qwen3(tmp_path, causal=False)
    engine = RoseEngine(_config(folder, PoolingMode.MEAN, dtype=dtype))
    sequences = _sequences(_LENGTHS)
    cosines = (_embed(engine, sequences) * _oracle(folder, Qwen3Model, sequences, PoolingMode.MEAN)).sum(1)
    engine.close()
    assert cosines.min() >= (1 - 1e-6 if dtype == "float32" else 0.9999)


def _dense(folder: Path, before: int, after: int, activation: Activation) -> tuple[DenseConfig, torch.nn.Linear]:
    torch.manual_seed(after)
    linear = torch.nn.Linear(before, after)
    folder.mkdir()
    save_file({f"linear.{name}": values.detach() for name, values in linear.named_parameters()}, folder / _WEIGHTS)
    return DenseConfig(folder, before, after, activation=activation), linear.cuda()


@pytest.mark.parametrize("skips", [True, False], ids=["without prompts", "all tokens"])
def test_projections_of_several_poolings(tmp_path: Path, skips: bool) -> None:
    """Requests of all kinds in one batch: prompts of other lengths, other dimensions, scaled or not."""
    folder = _bert(tmp_path)
    first, wide = _dense(tmp_path / "2_Dense", 3 * 256, 512, Activation.TANH)
    second, narrow = _dense(tmp_path / "3_Dense", 512, 64, Activation.IDENTITY)
    also = (PoolingMode.MAX, PoolingMode.WEIGHTED_MEAN)
    head = HeadConfig(PoolingMode.MEAN, also=also, include_prompt=not skips, dense=(first, second))
    engine = RoseEngine(_config(folder, PoolingMode.MEAN, head=head, dtype="float32"))
    sequences = _sequences(_LENGTHS)
    skipped = [min(index, len(ids) - 1) if skips else 0 for index, ids in enumerate(sequences)]
    dims = [(0, 16, 32)[index % 3] for index in range(len(sequences))]
    scaled = [index % 4 != 1 for index in range(len(sequences))]

    def embed() -> Float32Array:
        queue = deque(
            Request(
                ids,
                np.array([len(ids)], np.int32),
                lambda _: None,
                normalize,
                dims=wanted,
                fields={Field.POOL_FROM: np.array([skip], np.int32)} if skip else {},
            )
            for ids, normalize, wanted, skip in zip(sequences, scaled, dims, skipped, strict=True)
        )
        batch = TokenPacker(engine.budgets.tokens, engine.config.max_sequences).take(queue)
        assert batch is not None
        rows = np.empty((len(sequences), engine.dim), np.float32)
        rows[batch.order] = engine.step(batch).numpy()
        return rows

    eager, _, replayed = embed(), embed(), embed()
    engine.close()
    assert np.array_equal(eager, replayed)
    model = BertModel.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    for ids, skip, wanted, normalize, row in zip(sequences, skipped, dims, scaled, replayed, strict=True):
        with torch.inference_mode():
            hidden = model(torch.from_numpy(ids).long()[None].cuda()).last_hidden_state[0]
            weights = torch.arange(skip + 1.0, len(hidden) + 1, device="cuda")[:, None]
            kept = hidden[skip:]
            pooled = torch.cat([kept.mean(0), kept.max(0).values, (kept * weights).sum(0) / weights.sum()])
            expected = narrow(torch.tanh(wide(pooled)))[: wanted or None]
            if normalize:
                expected = torch.nn.functional.normalize(expected, dim=0)
        assert np.abs(row[: wanted or None] - expected.cpu().numpy()).max() <= 1e-4


_FORMS = (FLOAT, Output.INT8, Output.BINARY, FLOAT | Output.BINARY, Output.INT8 | Output.BINARY)


@pytest.mark.parametrize("tanh", [True, False], ids=["pplx", "ranges"])
def test_codes_are_made_on_the_device(tmp_path: Path, tanh: bool) -> None:
    """Requests that want different forms share batches, eager and replayed; what nobody wants does not come back."""
    ranges = () if tanh else (Ranges(0, (-0.9,) * 256, (0.9,) * 256), Ranges(1, (-0.2,) * 256, (0.2,) * 256))
    head = HeadConfig(PoolingMode.MEAN, normalize=not tanh, tanh_codes=tanh, ranges=ranges)
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN, head=head, dtype="float32"))
    sequences = _sequences(_LENGTHS)

    def embed(forms: Sequence[Output]) -> Results:
        queue = deque(
            Request(ids, np.array([len(ids)], np.int32), lambda _: None, not tanh and index % 2 == 0, outputs=form)
            for index, (ids, form) in enumerate(zip(sequences, forms, strict=True))
        )
        batch = TokenPacker(engine.budgets.tokens, engine.config.max_sequences).take(queue)
        assert batch is not None
        unsorted = {}
        for form, values in engine.step(batch).results().items():
            unsorted[form] = np.empty_like(values)
            unsorted[form][batch.order] = values
        return unsorted

    vectors = embed([FLOAT] * len(sequences))[FLOAT]
    mixed = [_FORMS[index % len(_FORMS)] for index in range(len(sequences))]
    kept = [embed(mixed) for _ in range(12)]  # more than the ring has slots
    assert set(embed([Output.INT8] * len(sequences))) == {Output.INT8}
    scale = np.array([1.0 if tanh or index % 2 else 0.2 / 0.9 for index in range(len(sequences))], np.float32)[:, None]
    steps = np.float32(1.8) / 255 * scale
    codes = (
        np.rint(127 * np.tanh(vectors)) if tanh else np.clip(np.floor((vectors + 0.9 * scale) / steps), 0, 255) - 128
    )
    for made in kept:
        assert np.array_equal(made[FLOAT], vectors)
        off = np.abs(made[Output.INT8].astype(int) - codes)
        assert off.max() <= 1
        assert (off != 0).mean() < 0.01
        assert np.array_equal(made[Output.BINARY], np.packbits(vectors >= 0 if tanh else vectors > 0, axis=-1))
    engine.close()


def test_outputs_of_tokens(tmp_path: Path) -> None:
    """As BGE-M3 has them, beside dense vectors of the first token; eager, recorded and replayed."""
    folder = _bert(tmp_path)
    torch.manual_seed(5)
    sparse, multi = torch.nn.Linear(256, 1), torch.nn.Linear(256, 64)
    paths = []
    for name, linear in (("sparse", sparse), ("colbert", multi)):
        paths.append(folder / f"{name}_linear.pt")
        torch.save(linear.state_dict(), paths[-1])
    head = HeadConfig(PoolingMode.CLS, tokens=TokenHeads(*paths))
    engine = RoseEngine(_config(folder, PoolingMode.CLS, head=head, dtype="float32"))
    sequences = _sequences(_LENGTHS)
    model = BertModel.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    with torch.inference_mode():
        hidden = [model(torch.from_numpy(ids).long()[None].cuda()).last_hidden_state[0] for ids in sequences]
        weights = torch.cat([torch.relu(sparse.cuda()(rows)) for rows in hidden]).cpu().numpy()
        vectors = torch.cat([torch.nn.functional.normalize(multi.cuda()(rows), dim=-1) for rows in hidden])
        dense = torch.nn.functional.normalize(torch.stack([rows[0] for rows in hidden]), dim=-1).cpu().numpy()
    for outputs in [FLOAT | Output.SPARSE | Output.TOKEN] * 4 + [Output.SPARSE]:
        queue = deque(
            Request(ids, np.array([len(ids)], np.int32), lambda _: None, outputs=outputs) for ids in sequences
        )
        batch = TokenPacker(engine.budgets.tokens, engine.config.max_sequences).take(queue)
        assert batch is not None
        made = engine.step(batch).results()
        assert sum(made) == outputs
        assert np.abs(made[Output.SPARSE] - weights[batch.token_order]).max() <= 1e-4
        if outputs & FLOAT:
            assert np.abs(made[Output.TOKEN] - vectors.cpu().numpy()[batch.token_order]).max() <= 1e-4
            assert np.abs(made[FLOAT] - dense[batch.order]).max() <= 1e-4
    engine.close()


@pytest.mark.parametrize(("dtype", "counts", "most"), [("float32", (4, 0, 0), 1e-4), ("bfloat16", (1, 1, 3), 5e-3)])
def test_spans_of_documents(tmp_path: Path, dtype: str, counts: tuple[int, int, int], most: float) -> None:
    """Documents beside plain sequences, eager, recorded and replayed; more rows than a batch may have sequences."""
    folder = _qwen3(tmp_path, causal=False)
    engine = RoseEngine(_config(folder, PoolingMode.MEAN, dtype=dtype, max_sequences=16))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    sequences = _sequences([40, 500, 1, 257, 64])
    cuts = [None, [0, 0, *range(3, 200, 3), 450, 500, 500], [0, 1], [0, 128, 129, 257], None]
    model = Qwen3Model.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    expected = []
    for ids, places in zip(sequences, cuts, strict=True):
        with torch.inference_mode():
            hidden = model(torch.from_numpy(ids).long()[None].cuda()).last_hidden_state[0]
        for start, stop in pairwise(places or [0, len(ids)]):
            mean = hidden[start:stop].mean(0) if stop > start else torch.zeros_like(hidden[0])
            expected.append(torch.nn.functional.normalize(mean, dim=0).cpu().numpy())

    def embed(outputs: Output) -> Results:
        queue = deque(
            Request(
                ids,
                np.array([len(ids)], np.int32),
                lambda _: None,
                outputs=outputs,
                spans=places
                and Spans(
                    np.array([len(places) - 1], np.int32),
                    np.array(places[:-1], np.int32),
                    np.array(places[1:], np.int32),
                ),
            )
            for ids, places in zip(sequences, cuts, strict=True)
        )
        batch = TokenPacker(engine.budgets.tokens, 16).take(queue)
        assert batch is not None
        assert not queue
        assert batch.order.tolist() == list(range(len(expected)))
        return engine.step(batch).results()

    for _ in range(4):
        made = embed(FLOAT)[FLOAT]
        assert made.shape == (len(expected), 256)
        assert np.abs(made - np.stack(expected)).max() <= most
        assert (_embed(engine, [sequences[0]])[0] * expected[0]).sum() >= 0.999  # the other recordings are intact
    counters = runner.token_graphs.counters
    assert (counters.eager, counters.captures, counters.replays) == counts
    bits = embed(Output.BINARY)
    assert set(bits) == {Output.BINARY}
    assert np.array_equal(bits[Output.BINARY], np.packbits(made > 0, axis=-1))
    engine.close()


def test_capture_replay_and_eviction(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=True), PoolingMode.LAST))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    counters = runner.graphs.counters
    for expected in ((1, 0, 0), (1, 1, 1), (1, 1, 2)):
        _embed(engine, _sequences([40]))
        assert (counters.eager, counters.captures, counters.replays) == expected
    first = _embed(engine, _sequences([40]))
    runner.graphs.budget = 0  # room for the last one only
    _embed(engine, _sequences([200]))
    _embed(engine, _sequences([200]))
    assert counters.evictions == 1
    assert runner.graphs.buckets == [Bucket.fitting(200, 1, 200)]
    covered = _embed(engine, _sequences([40]))  # in the recording of 200 tokens
    assert counters.covered == 1
    assert (covered * first).sum() >= 0.9995
    engine.close()


def test_a_larger_recording_gives_the_same_vectors(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    expected = [_embed(engine, _sequences(lengths)) for lengths in ([7], [40, 3], [64] * 3)]
    runner.warm([Bucket.fitting(512, 16, 512)])
    for lengths, vectors in zip(([7], [40, 3], [64] * 3), expected, strict=True):
        assert (_embed(engine, _sequences(lengths)) * vectors).sum(1).min() >= 0.9995
    assert runner.graphs.counters.covered == 3
    while runner.idle():
        time.sleep(0.001)
    for lengths in ([7], [40, 3], [64] * 3):  # each was hit twice, so that it is recorded now
        assert Bucket.fitting(sum(lengths), len(lengths), max(lengths)) in runner.graphs.buckets
    engine.close()


def test_recorded_beside_the_batches(tmp_path: Path) -> None:
    """What is covered is recorded on another thread, whatever runs meanwhile, and nothing of either changes."""
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    shapes = ([7], [40, 3], [64] * 3, [100, 20, 8])
    expected = [_embed(engine, _sequences(lengths)) for lengths in shapes]
    runner.warm([Bucket.fitting(512, 16, 512)])
    buckets = [Bucket.fitting(sum(lengths), len(lengths), max(lengths)) for lengths in shapes]
    ends, turn = time.monotonic() + 60, 0
    while not set(buckets) <= set(runner.graphs.buckets):
        assert time.monotonic() < ends
        turn += 1
        for lengths, vectors in zip(shapes, expected, strict=True):
            assert (_embed(engine, _sequences(lengths)) * vectors).sum(1).min() >= 0.9995
        if turn % 40 == 0:
            _embed(engine, _sequences([600 + turn]))  # eagerly, or recorded while the others wait
    assert runner.graphs.counters.covered >= 4 * 63
    for lengths, vectors in zip(shapes, expected, strict=True):
        assert (_embed(engine, _sequences(lengths)) * vectors).sum(1).min() >= 0.9995
    engine.close()


def test_a_step_says_whether_it_was_replayed(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=True), PoolingMode.LAST))
    batch = synthetic_batch(40, 40, _VOCAB)
    assert [engine.step(batch).replayed for _ in range(3)] == [False, True, True]
    assert engine.step(replace(batch, outputs=Output.BINARY)).replayed  # the same recording, and the codes behind it
    engine.close()


def test_warm_buckets_replay_at_once(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=True), PoolingMode.LAST))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.warm([Bucket.fitting(40, 1, 40)])
    _embed(engine, _sequences([40]))
    assert (runner.graphs.counters.eager, runner.graphs.counters.replays) == (0, 1)
    engine.close()


def test_the_next_process_records_what_was_hot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = _config(_qwen3(tmp_path, causal=True), PoolingMode.LAST)
    first = RoseEngine(config)
    for _ in range(3):
        expected = _embed(first, _sequences([40]))
    first.close()
    second = RoseEngine(config)
    runner = second.runner
    assert isinstance(runner, CudaRunner)
    assert runner.graphs.buckets == []
    assert second.idle()
    while runner.graphs.recording:
        time.sleep(0.001)
    assert runner.graphs.buckets == [Bucket.fitting(40, 1, 40)]
    while second.idle():
        time.sleep(0.001)
    assert set(covering_buckets(4096, 512)) <= set(runner.graphs.buckets)
    assert np.array_equal(_embed(second, _sequences([40])), expected)
    assert (runner.graphs.counters.eager, runner.graphs.counters.replays) == (0, 1)
    second.close()


def test_the_token_budget_is_measured(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=True), PoolingMode.LAST, token_budget=None))
    assert engine.budgets.tokens in CUDA_SIZES
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    assert runner.graphs.buckets == []  # what the measurement recorded is gone
    engine.close()


def test_engines_in_one_thread_keep_their_streams_apart(tmp_path: Path) -> None:
    config = _config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN)
    sequences = _sequences(_LENGTHS)
    one, other = RoseEngine(config), RoseEngine(config)
    expected = _embed(one, sequences)
    for _ in range(3):
        launched = [(engine, _launch(engine, sequences)) for engine in (one, other)]
        for engine, batches in launched:
            parts = []
            for order, rows in batches:
                unsorted = np.empty((len(order), engine.dim), np.float32)
                unsorted[order] = rows.numpy()
                parts.append(unsorted)
            assert np.array_equal(np.concatenate(parts), expected)
    one.close()
    other.close()


def test_idle_work_is_done_in_the_stream_of_the_steps(tmp_path: Path) -> None:
    """Also by a thread that never ran one: what it frees must not be in use there."""
    runner = RoseEngine(_config(_bert(tmp_path), PoolingMode.MEAN)).runner
    assert isinstance(runner, CudaRunner)
    current: list[torch.cuda.Stream] = []

    def idle() -> None:
        runner.idle()
        current.append(torch.cuda.current_stream())

    with torch.cuda.stream(runner._stream):
        runner.graphs.begin(Bucket.fitting(40, 1, 40))  # which the other thread finds under way, or keeps
    thread = threading.Thread(target=idle)
    thread.start()
    thread.join()
    assert current == [runner._stream]
    runner.close()


def test_a_sequence_longer_than_the_budget_runs_alone(tmp_path: Path) -> None:
    folder = _qwen3(tmp_path, causal=False)
    engine = RoseEngine(_config(folder, PoolingMode.MEAN, token_budget=128))
    sequences = _sequences([100, 500, 20])
    cosines = (_embed(engine, sequences) * _oracle(folder, Qwen3Model, sequences, PoolingMode.MEAN)).sum(1)
    engine.close()
    assert cosines.min() >= 0.999


def test_a_step_never_waits(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN))
    for _ in range(3):
        _embed(engine, _sequences(_LENGTHS))
    coded = replace(synthetic_batch(100, 10, _VOCAB), outputs=FLOAT | Output.BINARY)
    document = replace(synthetic_batch(100, 10, _VOCAB), spans=np.array([[0, 7], [7, 100], [1, 0]], np.int32))
    for _ in range(3):
        engine.step(coded).wait()
        engine.step(document).wait()
    try:
        torch.cuda.set_sync_debug_mode("error")
        launched = _launch(engine, _sequences(_LENGTHS))
        engine.step(coded)
        engine.step(document)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _, rows in launched:
        rows.wait()
    engine.close()


def test_results_are_not_overwritten_while_read(tmp_path: Path) -> None:
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN))
    [(_, rows)] = _launch(engine, _sequences([100], seed=1))
    first = rows.numpy()
    kept = first.copy()
    for seed in range(2, 20):
        _embed(engine, _sequences([100], seed=seed))
    assert np.array_equal(first, kept)
    engine.close()


def test_the_time_between_ends_is_the_devices(tmp_path: Path) -> None:
    """Whenever it is asked for: a tenth of a second of the device's passes from one end to the next."""
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    batch = synthetic_batch(100, 10, _VOCAB)
    runner.run_eagerly(batch).wait()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first = runner.run_eagerly(batch)
    with torch.cuda.stream(runner._stream):
        began.record()
        torch.cuda._sleep(200_000_000)  # cycles
    second = runner.run_eagerly(batch)
    with torch.cuda.stream(runner._stream):
        ended.record()
    first.wait()
    second.wait()
    time.sleep(0.05)
    passed = began.elapsed_time(ended) / 1e3
    assert passed > 0.05
    assert second.seconds_since(first) == pytest.approx(passed, abs=0.005)
    engine.close()


def test_a_late_copy_is_right_whatever_is_recorded_meanwhile(tmp_path: Path) -> None:
    """While anything is recorded, the allocator does not keep freed memory for streams that still read it."""
    engine = RoseEngine(_config(_qwen3(tmp_path, causal=False), PoolingMode.MEAN))
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    batch = synthetic_batch(100, 10, _VOCAB)
    expected = runner.run_eagerly(batch).numpy().copy()
    recording, enough = threading.Event(), threading.Event()

    def record() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            torch.zeros(16, device="cuda")
            recording.set()
            enough.wait(30)
            graph.capture_end()

    thread = threading.Thread(target=record)
    thread.start()
    assert recording.wait(30)
    with torch.cuda.stream(runner._copy_stream):
        torch.cuda._sleep(500_000_000)  # cycles: a few tenths of a second
    rows = runner.run_eagerly(batch)
    enough.set()
    thread.join()
    assert not rows.ready()
    runner.idle()  # opens the attention of a bucket, and may rehearse
    other = runner.run_eagerly(synthetic_batch(300, 30, _VOCAB))
    assert np.array_equal(rows.numpy(), expected)
    other.wait()
    engine.close()


def test_a_recording_holds_its_own_memory_alone() -> None:
    """What others allocate meanwhile must not make it look large: smaller ones would be given up for it."""
    recorder = GraphRecorder(torch.device("cuda:0"), torch.bfloat16)
    allocated: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        other = threading.Thread(target=lambda: allocated.append(torch.empty(2**30, dtype=torch.uint8, device="cuda")))
        other.start()
        other.join()
        return torch.zeros(40 * 2**20, dtype=torch.uint8, device="cuda")

    recording = recorder.begin(Bucket.fitting(16, 1, 16), run, None).result(60)
    assert len(allocated) == 1
    assert 40 * 2**20 <= recording.num_bytes < 200 * 2**20
    recording.close()
    recorder.close()


def test_eager_alone_gives_the_same(tmp_path: Path) -> None:
    folder = _qwen3(tmp_path, causal=False)
    sequences = _sequences(_LENGTHS)
    results = []
    for largest in (0, 16384):
        engine = RoseEngine(_config(folder, PoolingMode.MEAN, graphs=GraphConfig(largest_bucket=largest)))
        for _ in range(2):
            _embed(engine, sequences)
        results.append(_embed(engine, sequences))
        engine.close()
    assert np.array_equal(*results)


@pytest.mark.parametrize(("max_sequences", "max_length"), [(2, 512), (512, 16)])
def test_start_where_batches_are_small(tmp_path: Path, max_sequences: int, max_length: int) -> None:
    """What is timed to find the token budget fits into what batches are staged in."""
    config = _config(_bert(tmp_path), PoolingMode.MEAN, token_budget=None, max_sequences=max_sequences)
    engine = RoseEngine(replace(config, max_length=max_length))
    sequences = _sequences([1, 2, 15, 16, 16])
    cosines = (_embed(engine, sequences) * _oracle(tmp_path, BertModel, sequences, PoolingMode.MEAN)).sum(1)
    engine.close()
    assert cosines.min() >= 0.999


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_card_than_the_current_one(tmp_path: Path) -> None:
    """Events and launches belong to the current card, which is the first one unless somebody says otherwise."""
    folder = _qwen3(tmp_path, causal=True)
    vectors = []
    for device in ("cuda:0", "cuda:1"):
        torch.cuda.set_device(0)
        engine = RoseEngine(_config(folder, PoolingMode.LAST, device=device))
        vectors.append([_embed(engine, _sequences([40, 3, 200])) for _ in range(3)])
        engine.close()
    assert np.array_equal(*vectors)
