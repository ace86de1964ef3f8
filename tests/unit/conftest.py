"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.fake_triton import FakeTriton, fake_triton


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models on one thread: where other processes keep the cores busy, threads wait for one another instead."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fake_server() -> Iterator[FakeTriton]:
    """One of the test's own: a call that another test gave up may still be on its way to the server of that one."""
    with fake_triton() as fake:
        yield fake
