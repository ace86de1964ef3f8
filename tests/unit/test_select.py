"""Which attention backend a bucket gets, from made-up rankings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rose_backend.attention import select
from rose_backend.attention.base import Attention, Geometry, RaggedLayout
from rose_backend.attention.select import AttentionSelector, Shape, select_attention
from rose_backend.buckets import Bucket
from rose_backend.errors import CheckpointError
from rose_backend.kernels.torch_ops import TorchOps


@dataclass(frozen=True)
class FakeBackend:
    name: str
    longest: int | None = None
    capturable: bool = True

    def open(self, layout: RaggedLayout) -> Attention:
        raise AssertionError("it is only chosen here")


SHORT, ANY, OTHER = FakeBackend("short", longest=128), FakeBackend("any"), FakeBackend("other")


MEASURED = [Shape(16, 16), Shape(16, 64), Shape(64, 64), Shape(64, 256), Shape(64, 1024), Shape(512, 512)]


@pytest.mark.parametrize(
    ("bucket", "shape"),
    [
        (Bucket(1024, 16, 64), Shape(64, 1024)),  # 64 tokens each
        (Bucket(1024, 1, 1024), Shape(512, 512)),
        (Bucket(1024, 64, 64), Shape(16, 64)),  # 16 each; no more than 64 tokens were measured there
        (Bucket(16, 1, 32), Shape(16, 16)),
        (Bucket(64, 64, 32), Shape(16, 64)),  # one token each, but nothing shorter than 16 was measured
        (Bucket(192, 4, 64), Shape(64, 256)),  # 48 lies nearer to 64 than to 16, 192 nearer to 256 than to 64
        (Bucket(1280, 16, 128), Shape(64, 1024)),  # 80 lies nearer to 64
        (Bucket(16384, 2, 8192), Shape(512, 512)),  # more than was measured either way
    ],
)
def test_the_nearest_measured_shape(bucket: Bucket, shape: Shape) -> None:
    assert Shape.of(bucket, MEASURED) == shape


def table(**rankings: tuple[str, ...]) -> dict[Shape, tuple[str, ...]]:
    """Keys such as `s16x64`."""
    return {Shape(*map(int, key[1:].split("x"))): names for key, names in rankings.items()}


def test_each_bucket_gets_its_shapes_fastest() -> None:
    rankings = table(s16x16=("any", "short"), s16x64=("short", "any"), s64x64=("other", "any", "short"))
    selector = AttentionSelector([SHORT, ANY, OTHER], rankings)
    assert selector.choose(Bucket(16, 1, 32)) is ANY
    assert selector.choose(Bucket(64, 4, 32)) is SHORT
    assert selector.choose(Bucket(64, 1, 64)) is OTHER
    assert selector.backends == [SHORT, ANY, OTHER]


def test_a_bucket_with_a_longer_sequence_gets_the_next_in_the_ranking() -> None:
    selector = AttentionSelector([SHORT, ANY, OTHER], table(s16x16=("short",), s16x64=("short", "other", "any")))
    assert selector.choose(Bucket(64, 4, 128)) is SHORT
    assert selector.choose(Bucket(64, 4, 256)) is OTHER


def test_without_a_table_the_first_that_takes_the_length() -> None:
    selector = AttentionSelector([SHORT, ANY], {})
    assert selector.choose(Bucket(64, 4, 128)) is SHORT
    assert selector.choose(Bucket(256, 4, 256)) is ANY


def test_no_backend_for_the_length_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="256 tokens"):
        AttentionSelector([SHORT], {}).choose(Bucket(256, 1, 256))


def geometry(dtype: torch.dtype) -> Geometry:
    return Geometry(2, 2, 64, False, dtype, torch.device("cpu"))


def test_float32_is_sdpa_whatever_is_wanted() -> None:
    selector = select_attention(geometry(torch.float32), TorchOps(), "triton_short", 2, 64, 64, rotates=False)
    assert [backend.name for backend in selector.backends] == ["sdpa"]


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"'fastest' is not one of \['auto', .*'torch_varlen'"):
        select_attention(geometry(torch.bfloat16), TorchOps(), "fastest", 2, 64, 64, rotates=False)


def test_a_backend_that_cannot_run_here_says_why() -> None:
    with pytest.raises(CheckpointError, match=r"'triton_short' was asked for: .*CUDA"):
        select_attention(geometry(torch.bfloat16), TorchOps(), "triton_short", 2, 64, 64, rotates=False)


def test_whatever_decides_between_backends_is_in_the_tables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether queries and keys are rotated too: some backends do that in the same launch."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "card")
    names = [
        select._cache_file(geometry(dtype), kernels, layers, 64, 64, rotates)
        for dtype in (torch.bfloat16, torch.float16)
        for kernels in (["a"], ["a", "b"])
        for layers in (2, 3)
        for rotates in (False, True)
    ]
    assert len(set(names)) == 16


def test_a_kept_table_is_found_again(tmp_path: Path) -> None:
    rankings = table(s16x16=("any", "short"), s64x64=("other", "any"))
    path = tmp_path / "deeper" / "table.json"
    assert select._load(path, ["any", "short", "other"]) is None
    select._store(path, rankings)
    assert select._load(path, ["any", "short", "other"]) == rankings


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]", "null", "[1]", "[[16, 16]]", '[["a", 16, ["any"]]]', "[[16, 16, []]]", '[[16, 16, ["else"]]]',
     "[[1e999, 16, 1]]", "\x00"],
)  # fmt: skip
def test_a_table_that_cannot_be_read_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert select._load(path, ["any", "short"]) is None


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "table.json"
    assert select._load(path, ["any"]) is None
    select._store(path, table(s16x16=("any",)))
