"""How a batch is laid out: ascending lengths, ids gathered to match, `order` leading back."""

from __future__ import annotations

import random

import numpy as np

from rose_backend.core import Batch, Field, Segment
from tests.unit.builders import request_of


def test_layout_by_hand() -> None:
    first = request_of([[1, 2, 3], [4]], normalize=True)
    second = request_of([[5, 6], [7, 8, 9], [10]], normalize=False)
    batch = Batch.of((Segment(first, 0, 2), Segment(second, 0, 3)))
    assert batch.input_ids.tolist() == [4, 10, 5, 6, 1, 2, 3, 7, 8, 9]
    assert batch.cu_seqlens.tolist() == [0, 1, 2, 4, 7, 10]
    assert batch.order.tolist() == [1, 4, 2, 0, 3]
    assert batch.normalize.tolist() == [1, 0, 0, 1, 0]
    assert (batch.num_tokens, batch.num_sequences, batch.max_seqlen) == (10, 5, 3)


def test_ascending_lengths_stay_as_they_are() -> None:
    request = request_of([[1], [2, 3], [4, 5], [6, 7, 8]])
    batch = Batch.of((Segment(request, 0, 4),))
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert batch.order.tolist() == [0, 1, 2, 3]
    assert batch.cu_seqlens.tolist() == [0, 1, 3, 5, 8]


def test_a_part_of_a_request_takes_its_own_ids() -> None:
    request = request_of([[1, 2], [3, 4, 5], [6], [7, 8, 9, 10]])
    batch = Batch.of((Segment(request, 1, 2),))
    assert batch.input_ids.tolist() == [6, 3, 4, 5]
    assert batch.order.tolist() == [1, 0]
    assert batch.max_seqlen == 3


def test_types_are_what_the_device_reads() -> None:
    batch = Batch.of((Segment(request_of([[1, 2], [3]]), 0, 2),))
    assert batch.input_ids.dtype == np.int32
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.normalize.dtype == np.int32


def test_scaling_by_hand() -> None:
    ways = [(True, 0, 1), (False, 0, 0), (True, 8, -8), (False, 8, 0)]
    segments = []
    for normalize, dims, scaling in ways:
        request = request_of([[1, 2]], normalize=normalize)
        request.dims = dims
        assert Batch.of((Segment(request, 0, 1),)).normalize.tolist() == [scaling]
        segments.append(Segment(request, 0, 1))
    assert Batch.of(tuple(segments)).normalize.tolist() == [scaling for _, _, scaling in ways]


def test_fields_follow_their_sequences() -> None:
    bare, carrying = request_of([[1, 2, 3], [4]]), request_of([[5, 6], [7, 8, 9], [10]])
    carrying.fields = {Field.POOL_FROM: np.array([1, 2, 0], np.int32)}
    batch = Batch.of((Segment(bare, 0, 2), Segment(carrying, 0, 2)))
    assert batch.order.tolist() == [1, 2, 0, 3]
    assert {name: values.tolist() for name, values in batch.fields.items()} == {Field.POOL_FROM: [0, 1, 0, 2]}
    assert batch.fields[Field.POOL_FROM].dtype == np.int32
    alone = Batch.of((Segment(carrying, 1, 1),))
    assert {name: values.tolist() for name, values in alone.fields.items()} == {Field.POOL_FROM: [2]}
    assert Batch.of((Segment(bare, 0, 2),)).fields == {}


def test_random_layouts_equal_a_plain_loop() -> None:
    draw = random.Random(7)
    for _ in range(200):
        segments, sequences, flags = [], [], []
        for _ in range(draw.randint(1, 5)):
            own = [[draw.randrange(1000) for _ in range(draw.randint(1, 9))] for _ in range(draw.randint(1, 6))]
            first = draw.randrange(len(own))
            count = draw.randint(1, len(own) - first)
            flag = draw.random() < 0.5
            segments.append(Segment(request_of(own, normalize=flag), first, count))
            sequences += own[first : first + count]
            flags += [flag] * count
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))  # stable
        batch = Batch.of(tuple(segments))
        assert batch.order.tolist() == order
        assert batch.input_ids.tolist() == [token for index in order for token in sequences[index]]
        assert batch.cu_seqlens.tolist() == [0, *np.cumsum([len(sequences[index]) for index in order]).tolist()]
        assert batch.normalize.tolist() == [flags[index] for index in order]
        assert batch.max_seqlen == max(map(len, sequences))
