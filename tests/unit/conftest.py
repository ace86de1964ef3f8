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


@pytest.fixture(scope="module")
def _module_fake() -> Iterator[FakeTriton]:
    with fake_triton() as fake:
        yield fake


@pytest.fixture
def shared_fake(_module_fake: FakeTriton) -> FakeTriton:
    """One server a module, which has been asked nothing yet; what it answers is the test's to say."""
    _module_fake.calls.clear()
    return _module_fake
