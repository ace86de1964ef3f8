"""Codes from texts: against sentence-transformers' `quantize_embeddings`, and pplx-embed's rules by hand."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sentence_transformers.util.quantization import quantize_embeddings

from rose_backend.config import EngineConfig, HeadConfig, PoolingMode, Ranges, TokenHeads
from rose_backend.core import FLOAT, Batch, Int32Array, Output, Request, Results, Segment
from rose_backend.engine import RoseEngine
from rose_backend.errors import CheckpointError, InvalidArgumentError
from rose_backend.kernels.torch_ops import TorchOps
from rose_backend.packer import TokenPacker
from rose_backend.quantize import Quantizer
from rose_ensemble.calibrate import calibrate
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.int8_ranges import RANGES_FILE, write_ranges
from rose_ensemble.options import RequestOptions
from rose_ensemble.outputs import OutputRules, Wanted, forms_of, tensors_of
from tests.support.checkpoints import make_bert, write_json, write_modules
from tests.support.library import HIDDEN, alone, edit_json, library, save_with_library
from tests.support.vectors import assert_close
from tests.unit.builders import Answers
from tests.unit.engines import LIMIT, engine_on, sequences
from tests.unit.served import Served

_TEXTS = ["tea", "stone " * 9, "", "a harbour wall", "pot", "a violin and a tractor"]
ALL = Output.FLOAT | Output.INT8 | Output.BINARY


def _request(ids: Sequence[Sequence[int]], outputs: Output, *, normalize: bool = False, dims: int = 0) -> Request:
    flat: Int32Array = np.array([token for row in ids for token in row], np.int32)
    lengths = np.array([len(row) for row in ids], np.int32)
    return Request(flat, lengths, Answers(), normalize, dims=dims, outputs=outputs)


def _run(engine: RoseEngine, *requests: Request) -> list[Results]:
    """Every request's rows, of one batch."""
    batch = TokenPacker(10_000, 1_000).take(deque(requests))
    assert batch is not None
    unsorted = {}
    for form, values in engine.step(batch).results().items():
        unsorted[form] = np.empty_like(values)
        unsorted[form][batch.order] = values
    stops = np.cumsum([request.num_sequences for request in requests])[:-1]
    parts = {form: np.split(values, stops) for form, values in unsorted.items()}
    return [{form: rows[index] for form, rows in parts.items()} for index in range(len(requests))]


def _tanh_codes(x: npt.NDArray[np.float32]) -> list[list[int]]:
    return np.clip(np.rint(127 * np.tanh(x.astype(np.float64))), -128, 127).astype(np.int8).tolist()


@pytest.fixture(scope="module")
def pplx(tmp_path_factory: pytest.TempPathFactory) -> RoseEngine:
    folder = tmp_path_factory.mktemp("pplx")
    make_bert(folder)
    return RoseEngine(EngineConfig(folder, LIMIT, HeadConfig(PoolingMode.MEAN, normalize=False, tanh_codes=True)))


def test_codes_by_the_rules_of_pplx(pplx: RoseEngine) -> None:
    ids = sequences((1, 5, 24, 3), 101)
    [plain] = _run(pplx, _request(ids, FLOAT))
    [made] = _run(pplx, _request(ids, ALL))
    assert set(plain) == {FLOAT}
    x = plain[FLOAT]
    assert np.array_equal(made[FLOAT], x)
    assert made[Output.INT8].tolist() == _tanh_codes(x)
    assert made[Output.BINARY].tolist() == np.packbits(x >= 0, axis=-1).tolist()


def test_codes_of_pplx_by_hand() -> None:
    """Bits are those of the vector, not of its code; -15.92 becomes -16, which cutting off would not give."""
    x = torch.tensor([[0.0, -0.0, -0.001, 0.02, -0.126, 1.0, 9.0, -9.0]])
    quantizer = Quantizer(HeadConfig(normalize=False, tanh_codes=True), torch.device("cpu"))
    made = quantizer(TorchOps(), x, torch.zeros(1, dtype=torch.int32), ALL)
    assert made[Output.INT8].tolist() == [[0, 0, 0, 3, -16, 97, 127, -127]]
    assert made[Output.BINARY].tolist() == [[0b11010110]]


def test_a_batch_makes_only_what_somebody_wants(pplx: RoseEngine) -> None:
    ids = sequences((3, 4), 101)
    for outputs in (Output.INT8, Output.BINARY, Output.INT8 | Output.BINARY, FLOAT | Output.BINARY):
        [made] = _run(pplx, _request(ids, outputs))
        assert sum(made) == outputs
    mixed = _run(pplx, _request(ids, Output.INT8), _request(ids, FLOAT), _request(ids[:1], Output.INT8))
    assert sum(mixed[0]) == Output.INT8 | FLOAT
    assert _tanh_codes(mixed[1][FLOAT]) == mixed[0][Output.INT8].tolist()
    assert mixed[2][Output.INT8].tolist() == mixed[0][Output.INT8][:1].tolist()


def test_a_segment_of_one_keeps_its_outputs() -> None:
    request = _request([[5, 6]], Output.INT8)
    assert Batch.of((Segment(request, 0, 1),)).outputs is Output.INT8
    many = _request([[5], [6]], Output.BINARY)
    assert Batch.of((Segment(many, 0, 2), Segment(request, 0, 1))).outputs == Output.INT8 | Output.BINARY
    assert Batch.of((Segment(_request([[5], [6]], FLOAT), 0, 2),)).outputs is FLOAT


def test_a_request_over_several_batches_gets_every_form(pplx: RoseEngine) -> None:
    from rose_backend.admission import Limits
    from rose_backend.metrics import NullMetrics
    from rose_backend.service import RoseService

    ids = sequences((7, 5, 9, 3, 2), 101)
    [expected] = _run(pplx, _request(ids, ALL))
    service = RoseService(pplx, TokenPacker(12, 2), Limits(101, LIMIT), NullMetrics())
    requests = [_request(ids, Output.INT8 | Output.BINARY), _request(ids, FLOAT), _request(ids[:1], Output.BINARY)]
    assert service.submit_all(requests) == [None] * 3
    service.close()
    outcomes: list[Any] = [request.reply.wait() for request in requests]  # type: ignore[attr-defined]
    assert set(outcomes[0]) == {Output.INT8, Output.BINARY}
    assert outcomes[0][Output.INT8].tolist() == expected[Output.INT8].tolist()
    assert outcomes[0][Output.BINARY].tolist() == expected[Output.BINARY].tolist()
    assert np.allclose(outcomes[1][FLOAT], expected[FLOAT], atol=1e-5)
    assert outcomes[2][Output.BINARY].tolist() == expected[Output.BINARY][:1].tolist()


def test_bits_by_the_rules_of_sentence_transformers(tmp_path: Path) -> None:
    make_bert(tmp_path)
    engine = engine_on(tmp_path)
    [made] = _run(engine, _request(sequences((4, 6, 1), 101), FLOAT | Output.BINARY))
    assert made[Output.BINARY].tolist() == quantize_embeddings(made[FLOAT], "ubinary").tolist()


@pytest.mark.parametrize("normalize", [True, False])
def test_calibrated_codes_are_the_librarys(tmp_path: Path, minilm: Path, normalize: bool) -> None:
    """Whole and cut vectors, scaled and not, in one batch, each with the ranges of its kind."""
    folder = save_with_library(tmp_path, minilm, normalize=normalize)
    edit_json(folder / "config.json", matryoshka_dimensions=[8, 16, HIDDEN])
    write_ranges(folder, calibrate(folder, _TEXTS, "cpu", ()))
    bare = library(folder)
    if normalize:
        del bare[-1]
    served = Served(read_checkpoint(folder))
    new = ["a kettle boils", "tea", "a tractor " * 5]
    ways = [
        RequestOptions(outputs=("int8",), dimensions=dimensions, normalize=scaled)
        for dimensions in (None, 8, 16)
        for scaled in (True, False)
    ]
    together = served.codes_together([(new, way) for way in ways])
    for made, way in zip(together, ways, strict=True):
        how = {"truncate_dim": way.dimensions, "normalize_embeddings": way.normalize}
        ranges = np.stack([alone(bare, _TEXTS, **how).min(0), alone(bare, _TEXTS, **how).max(0)])
        expected = quantize_embeddings(alone(bare, new, **how), "int8", ranges=ranges)
        assert made["EMBEDDING_INT8"].shape == expected.shape
        off = np.abs(made["EMBEDDING_INT8"].astype(int) - expected.astype(int))
        assert off.max() <= 1  # where a value lies on a step's edge
        assert (off != 0).mean() < 0.03


def test_a_cut_without_scaling_again_is_the_librarys(tmp_path: Path, minilm: Path) -> None:
    """Of a checkpoint that ends in Normalize: scaled, then cut; codes by the ranges of whole vectors."""
    folder = save_with_library(tmp_path, minilm)
    edit_json(folder / "config.json", matryoshka_dimensions=[8, HIDDEN])
    write_ranges(folder, calibrate(folder, _TEXTS, "cpu", ()))
    texts, model = ["a kettle boils", "tea", "a tractor " * 5], library(folder)
    way = RequestOptions(outputs=("float", "int8"), dimensions=8, renormalize=False)
    again = RequestOptions(dimensions=8)
    made, scaled = Served(read_checkpoint(folder)).codes_together([(texts, way), (texts, again)])
    expected = alone(model, texts, truncate_dim=8)
    assert np.abs(np.linalg.norm(expected, axis=1) - 1).min() > 0.1
    assert_close(made["EMBEDDING"].reshape(expected.shape), expected)
    assert_close(
        scaled["EMBEDDING"].reshape(expected.shape), alone(model, texts, truncate_dim=8, normalize_embeddings=True)
    )
    whole = alone(model, _TEXTS)
    codes = quantize_embeddings(expected, "int8", ranges=np.stack([whole.min(0), whole.max(0)])[:, :8])
    assert np.abs(made["EMBEDDING_INT8"].reshape(codes.shape).astype(int) - codes.astype(int)).max() <= 1


def test_calibrated_codes_by_hand() -> None:
    import torch

    from rose_backend.kernels.torch_ops import TorchOps
    from rose_backend.quantize import Quantizer

    head = HeadConfig(ranges=(Ranges(0, (0.0, -1.0, 2.0), (255.0, 1.0, 2.0)),))
    quantizer = Quantizer(head, torch.device("cpu"))
    x = torch.tensor([[0.0, -1.0, 2.0], [1.5, 0.0, 2.5], [-9.0, 0.999, 3.0], [300.0, 5.0, 0.0]])
    normalize = torch.zeros(4, dtype=torch.int32)
    made = quantizer(TorchOps(), x, normalize, Output.INT8)[Output.INT8]
    # Steps: 1, 2 / 255, and 1 for the element without a range.
    assert made.tolist() == [[-128, -128, -128], [-127, -1, -128], [-128, 126, -127], [127, 127, -128]]


def test_tensors_are_cut_and_ordered() -> None:
    results: dict[Output, npt.NDArray[Any]] = {
        FLOAT: np.arange(32, dtype=np.float32).reshape(2, 16),
        Output.INT8: np.arange(32, dtype=np.int8).reshape(2, 16),
        Output.BINARY: np.array([[0b10000000, 0b11010000], [1, 2]], np.uint8),
    }

    def tensors(outputs: Output, dims: int = 0, *, lsb_first: bool = False) -> dict[str, Any]:
        request = _request([[1], [2]], outputs, dims=dims)
        found = tensors_of(Wanted.of(request), results, (1, 2), TokenHeads(), lsb_first=lsb_first)
        return {name: values[0].tolist() for name, values in found}

    assert tensors(Output.BINARY) == {"EMBEDDING_BINARY": [[128, 208], [1, 2]]}
    assert tensors(Output.BINARY, lsb_first=True) == {"EMBEDDING_BINARY": [[1, 11], [128, 64]]}
    assert tensors(Output.BINARY, 8) == {"EMBEDDING_BINARY": [[128], [1]]}
    assert tensors(FLOAT | Output.INT8, 3) == {
        "EMBEDDING": [[0, 1, 2], [16, 17, 18]],
        "EMBEDDING_INT8": [[0, 1, 2], [16, 17, 18]],
    }
    assert forms_of(("binary", "float"), HeadConfig()) == Output.BINARY | FLOAT


@pytest.mark.parametrize(
    ("head", "dim", "how", "words"),
    [
        (HeadConfig(), 100, {"outputs": Output.BINARY}, "100 elements do not fill bytes of 8 bits"),
        (HeadConfig(), 96, {"outputs": Output.BINARY, "dims": 12}, "12 elements do not fill"),
        (HeadConfig(), 96, {"outputs": Output.INT8}, "has no rose_int8_ranges.json; `rose calibrate` makes one"),
        (
            HeadConfig(tanh_codes=True),
            96,
            {"outputs": Output.INT8, "normalize": True},
            "'normalize' is true, but this checkpoint's int8 codes",
        ),
        (
            HeadConfig(ranges=(Ranges(1, (), ()),)),
            96,
            {"outputs": Output.INT8, "normalize": True, "dims": 8},
            "no ranges for 8 elements that are scaled to unit length",
        ),
        (HeadConfig(ranges=(Ranges(1, (), ()),)), 96, {"outputs": Output.INT8}, "no ranges for 96 .* not scaled"),
    ],
)
def test_refusals(head: HeadConfig, dim: int, how: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        OutputRules(head, dim).check(_request([[1]], **how))


@pytest.mark.parametrize("outputs", [Output.INT8, FLOAT | Output.INT8, Output.BINARY, Output.TOKEN])
def test_what_the_model_was_set_up_without_is_refused(outputs: Output) -> None:
    """A checkpoint that was calibrated afterwards: Triton would leave the tensor out and call it a success."""
    rules = OutputRules(HeadConfig(ranges=(Ranges(0, (), ()),)), 96, frozenset({"EMBEDDING"}))
    with pytest.raises(InvalidArgumentError, match="this model was set up without: serve the checkpoint anew"):
        rules.check(_request([[1]], outputs))


def test_what_is_not_refused() -> None:
    OutputRules(HeadConfig(), 100).check(_request([[1]], Output.BINARY, dims=64))
    OutputRules(HeadConfig(tanh_codes=True), 96).check(_request([[1]], Output.BINARY, normalize=True))
    OutputRules(HeadConfig(tanh_codes=True), 96).check(_request([[1]], ALL, dims=8))
    ranges = (Ranges(0, (), ()), Ranges(-8, (), ()))
    for how in ({"dims": 5}, {}, {"dims": 8, "normalize": True}):
        OutputRules(HeadConfig(ranges=ranges), 96).check(_request([[1]], Output.INT8, **how))  # type: ignore[arg-type]


def _ranges(folder: Path, **changes: Any) -> tuple[Ranges, ...]:
    entry = {"dimensions": HIDDEN, "normalize": False, "min": [-1.0] * HIDDEN, "max": [1] * HIDDEN, **changes}
    write_json(folder / RANGES_FILE, {"ranges": [entry]})
    return read_checkpoint(folder).head.ranges


def test_ranges_are_read(tmp_path: Path) -> None:
    make_bert(tmp_path)
    write_modules(tmp_path)
    assert read_checkpoint(tmp_path).head.ranges == ()
    assert _ranges(tmp_path) == (Ranges(0, (-1.0,) * HIDDEN, (1.0,) * HIDDEN),)
    assert _ranges(tmp_path, normalize=True)[0].scaling == 1
    cut = _ranges(tmp_path, normalize=True, dimensions=2, min=[-3, -4], max=[3, 4])
    assert cut == (Ranges(-2, (-3.0, -4.0, *[0.0] * 30), (3.0, 4.0, *[0.0] * 30)),)
    assert tmp_path / RANGES_FILE in read_checkpoint(tmp_path).files


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dimensions": 33}, "dimensions is 33, but vectors have 32"),
        ({"dimensions": 8}, "dimensions is 8, but vectors have 32"),
        ({"min": [0.0]}, "min does not hold 32 finite numbers"),
        ({"max": ["1"] * 32}, "max does not hold 32 finite numbers"),
        ({"max": [float("nan")] * 32}, "max does not hold 32 finite numbers"),
        ({"min": [2] * 32}, "a number of min is above that of max"),
        ({"mean": []}, "option 'mean' is not served"),
    ],
)
def test_malformed_ranges_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    make_bert(tmp_path)
    write_modules(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        _ranges(tmp_path, **changes)


def test_ranges_given_twice_are_refused(tmp_path: Path) -> None:
    make_bert(tmp_path)
    write_modules(tmp_path)
    _ranges(tmp_path)
    [entry] = json.loads((tmp_path / RANGES_FILE).read_text())["ranges"]
    write_json(tmp_path / RANGES_FILE, {"ranges": [entry, entry]})
    with pytest.raises(CheckpointError, match="two entries"):
        read_checkpoint(tmp_path)


def test_calibration_wants_texts_and_lengths_that_are_served(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm)
    with pytest.raises(InvalidArgumentError, match="1 texts have no ranges"):
        calibrate(folder, ["tea"], "cpu", ())
    with pytest.raises(InvalidArgumentError, match="'dimensions' is 8"):
        calibrate(folder, ["tea", "pot"], "cpu", (8,))


def test_the_quantizer_of_pplx_is_served(tmp_path: Path) -> None:
    make_bert(tmp_path)
    write_modules(tmp_path, normalize=False)
    modules = json.loads((tmp_path / "modules.json").read_text())
    quantizer = {"idx": 2, "name": "2", "path": "", "type": "st_quantize.FlexibleQuantizer"}
    for entry in (quantizer, {**quantizer, "kwargs": ["quantization"]}):
        write_json(tmp_path / "modules.json", [*modules, entry])
        assert read_checkpoint(tmp_path).head == HeadConfig(PoolingMode.MEAN, normalize=False, tanh_codes=True)
    for entry in (
        {**quantizer, "type": "other.FlexibleQuantizer"},
        {**quantizer, "type": "other.st_quantize.FlexibleQuantizer"},
        {**quantizer, "kwargs": ["precision"]},
    ):
        write_json(tmp_path / "modules.json", [*modules, entry])
        with pytest.raises(CheckpointError, match="not served"):
            read_checkpoint(tmp_path)
    write_json(tmp_path / "modules.json", [modules[0], quantizer, modules[1]])
    with pytest.raises(CheckpointError, match="not served"):
        read_checkpoint(tmp_path)
