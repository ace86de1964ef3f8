"""Checkpoint files as they arrive after a broken download or a careless edit: refused by file, with the reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rose_backend.errors import CheckpointError
from rose_backend.weights import Weights

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TENSORS = {
    "bert.words": torch.arange(12.0).reshape(4, 3),
    "bert.query": torch.full((2, 3), 1.0),
    "bert.key": torch.full((1, 3), 2.0),
    "bert.wide": torch.full((2, 5), 3.0),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in one file."""
    save_file(TENSORS, tmp_path / WHOLE)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The same checkpoint in a folder of its own, in two files with an index."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    shards = {name: "1.safetensors" if name == "bert.words" else "2.safetensors" for name in TENSORS}
    for shard in set(shards.values()):
        save_file({name: TENSORS[name] for name in shards if shards[name] == shard}, folder / shard)
    write_index(folder, {"metadata": {}, "weight_map": shards})
    return folder


def write_index(folder: Path, values: Any) -> None:
    (folder / INDEX).write_text(json.dumps(values))


def open_weights(folder: Path) -> Weights:
    return Weights(folder, "words", ("", "bert."), torch.device("cpu"), torch.float32)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        open_weights(folder)
    return str(refused.value)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """A safetensors file: the header's length in 8 bytes, the header, the data."""
    return struct.pack("<Q", len(header)) + header + data


class TestDamagedFile:
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "header too small"),
            (b"abc", "header too small"),
            (with_header(b'{"a":{"dtype":"F32",')[:20], "invalid header length"),
            (struct.pack("<Q", 10**6) + b"{}", "invalid header length"),
            (struct.pack("<Q", 2**63) + b"{}", "header too large"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "header too large"),
            (with_header(b"{not JSON}"), "invalid JSON"),
            (with_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"\0" * 5), "incomplete"),
            (with_header(b'{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}', b"\0" * 8), "F99"),
        ],
        ids=[
            "empty",
            "a few bytes",
            "header cut short",
            "header longer than the file",
            "header length without sense",
            "a pointer in place of the file",
            "header is not JSON",
            "data cut short",
            "unknown dtype",
        ],
    )
    def test_is_named_with_the_reason(self, folder: Path, content: bytes, reason: str) -> None:
        (folder / WHOLE).write_bytes(content)
        message = refusal(folder)
        assert str(folder / WHOLE) in message
        assert reason in message

    def test_cut_anywhere(self, folder: Path) -> None:
        whole = (folder / WHOLE).read_bytes()
        for length in range(0, len(whole), 7):
            (folder / WHOLE).write_bytes(whole[:length])
            assert WHOLE in refusal(folder)

    def test_among_shards(self, sharded: Path) -> None:
        (sharded / "2.safetensors").write_bytes(b"\xff" * 64)
        assert str(sharded / "2.safetensors") in refusal(sharded)

    def test_damaged_after_it_was_opened(self, folder: Path) -> None:
        weights = open_weights(folder)
        (folder / WHOLE).write_bytes(b"")
        with pytest.raises(CheckpointError, match=WHOLE):
            weights.take("query")


class TestIndex:
    def test_leads_to_every_shard(self, sharded: Path) -> None:
        weights = open_weights(sharded)
        for name, tensor in TENSORS.items():
            assert torch.equal(weights.take(name.removeprefix("bert.")), tensor)

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}"], ids=["empty", "cut short", "not UTF-8"])
    def test_that_is_not_json(self, sharded: Path, content: bytes) -> None:
        (sharded / INDEX).write_bytes(content)
        message = refusal(sharded)
        assert str(sharded / INDEX) in message
        assert "not valid JSON" in message

    @pytest.mark.parametrize("values", [{}, [], 7, {"weight_map": None}, {"weight_map": ["1.safetensors"]}], ids=str)
    def test_without_a_weight_map(self, sharded: Path, values: Any) -> None:
        write_index(sharded, values)
        message = refusal(sharded)
        assert str(sharded / INDEX) in message
        assert "weight_map" in message

    @pytest.mark.parametrize("shard", [None, 1, ["1.safetensors"]], ids=str)
    def test_whose_shard_is_not_a_name(self, sharded: Path, shard: Any) -> None:
        write_index(sharded, {"weight_map": {"bert.words": shard}})
        message = refusal(sharded)
        assert all(part in message for part in (str(sharded / INDEX), repr(shard), "bert.words"))

    @pytest.mark.parametrize("form", ["../model.safetensors", "inner/../../model.safetensors", "{absolute}"])
    def test_that_names_a_file_outside_the_folder(self, folder: Path, sharded: Path, form: str) -> None:
        shard = form.format(absolute=folder / WHOLE)  # a good checkpoint, in the folder above
        write_index(sharded, {"weight_map": {"bert.words": shard}})
        message = refusal(sharded)
        assert all(part in message for part in (str(sharded / INDEX), repr(shard), "outside"))

    def test_that_names_a_file_which_is_not_there(self, sharded: Path) -> None:
        write_index(sharded, {"weight_map": {"bert.words": "3.safetensors"}})
        assert "3.safetensors, which is missing" in refusal(sharded)

    def test_whose_shards_are_links_to_elsewhere(self, sharded: Path, tmp_path: Path) -> None:
        for shard in sharded.glob("*.safetensors"):
            shard.symlink_to(shard.rename(tmp_path / f"blob-{shard.name}"))
        assert torch.equal(open_weights(sharded).take("query"), TENSORS["bert.query"])


class TestShapes:
    def test_expected_ones_are_taken(self, folder: Path) -> None:
        weights = open_weights(folder)
        assert torch.equal(weights.take("words", shape=(4, 3)), TENSORS["bert.words"])
        joined = torch.tensor([[1.0] * 3, [1.0] * 3, [2.0] * 3])
        assert torch.equal(weights.stack("query", "key", shape=(3, 3)), joined)

    def test_another_is_refused_with_both(self, folder: Path) -> None:
        with pytest.raises(CheckpointError, match=r"model\.safetensors.*bert\.words.*\[4, 3\].*\[5, 3\]"):
            open_weights(folder).take("words", shape=(5, 3))

    def test_another_sum_is_refused_with_its_parts(self, folder: Path) -> None:
        with pytest.raises(CheckpointError, match=r"bert\.query.*\[2, 3\].*bert\.key.*\[1, 3\].*\[4, 3\] together"):
            open_weights(folder).stack("query", "key", shape=(4, 3))

    def test_what_cannot_be_joined_is_named(self, folder: Path) -> None:
        with pytest.raises(CheckpointError, match=r"bert\.query.*\[2, 3\].*bert\.wide.*\[2, 5\]"):
            open_weights(folder).stack("query", "wide")


class TestNumbersThatNeedMore:
    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.bool], ids=str)
    def test_integers_and_eighths_are_refused(self, folder: Path, dtype: torch.dtype) -> None:
        save_file({**TENSORS, "bert.query": torch.ones(2, 3).to(dtype)}, folder / WHOLE)
        with pytest.raises(CheckpointError) as refused:
            open_weights(folder).stack("query", "key")
        for part in (str(folder / WHOLE), "'bert.query'", str(dtype), "torch.bfloat16"):
            assert part in str(refused.value)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_other_floating_point_is_cast(self, folder: Path, dtype: torch.dtype) -> None:
        save_file({**TENSORS, "bert.query": torch.full((2, 3), 1.5, dtype=dtype)}, folder / WHOLE)
        assert torch.equal(open_weights(folder).take("query"), torch.full((2, 3), 1.5))

    def test_a_dtype_of_its_own(self, folder: Path) -> None:
        weights = Weights(folder, "words", ("bert.",), torch.device("cpu"), torch.bfloat16)
        assert weights.take("words").dtype is torch.bfloat16
        assert torch.equal(weights.take("words", dtype=torch.float32), TENSORS["bert.words"])

    @pytest.mark.parametrize("quantization", [{"quant_method": "fp8"}, {}], ids=str)
    def test_a_quantization_config_is_refused(self, folder: Path, quantization: dict[str, str]) -> None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))
        message = refusal(folder)
        assert str(folder / "config.json") in message
        assert "quantization_config" in message
        assert quantization.get("quant_method", "") in message

    def test_no_quantization_is_no_reason(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": None}))
        assert torch.equal(open_weights(folder).take("words"), TENSORS["bert.words"])
