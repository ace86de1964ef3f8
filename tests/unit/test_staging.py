"""Where a bucket's inputs lie in the one block that is copied: apart, aligned, and inside."""

from __future__ import annotations

import pytest
import torch

from rose_backend.buckets import Bucket
from rose_backend.core import Field
from rose_backend.staging import _size, _views

_BUCKETS = [Bucket(16, 1, 32), Bucket(32, 2, 32), Bucket(64, 4, 32), Bucket(1280, 512, 128)]


@pytest.mark.parametrize("fields", [(), tuple(Field)], ids=["no fields", "all fields"])
@pytest.mark.parametrize("bucket", _BUCKETS, ids=str)
def test_parts_lie_apart_at_multiples_of_16_bytes(bucket: Bucket, fields: tuple[Field, ...]) -> None:
    block = torch.zeros(_size(bucket.num_tokens, bucket.num_sequences, len(fields)), dtype=torch.int32)
    views = _views(block, bucket, fields)
    assert tuple(views.fields) == fields
    parts = [views.input_ids, views.cu_seqlens, views.normalize, *views.fields.values()]
    lengths = [bucket.num_tokens, bucket.num_sequences + 2, *[bucket.num_sequences] * (1 + len(fields))]
    assert [len(part) for part in parts] == lengths
    for part in parts:
        assert part.storage_offset() % 4 == 0
        part += 1
    assert sorted(set(block.tolist())) in ([1], [0, 1])  # no value was reached twice; gaps keep their zeros
    assert int(block.sum()) == sum(lengths)
