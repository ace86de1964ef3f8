"""Lengths of the texts that load tests send."""

from __future__ import annotations

import random
import statistics

import pytest

from loadtests.traffic.texts import PASSAGE, QUERY, Lengths, draw_texts


@pytest.mark.parametrize(("lengths", "mean"), [(QUERY, 5.96), (PASSAGE, 55.98)])
def test_the_mean_is_that_of_ms_marco(lengths: Lengths, mean: float) -> None:
    rng = random.Random(0)
    words = [len(text.split()) for text in draw_texts(rng, 5000, lengths)]
    assert statistics.fmean(words) == pytest.approx(mean, rel=0.03)
    assert min(words) >= 1


@pytest.mark.parametrize(("lengths", "longer"), [(QUERY, 13), (PASSAGE, 158)])
def test_one_in_a_hundred_is_longer(lengths: Lengths, longer: int) -> None:
    rng = random.Random(1)
    share = statistics.fmean(lengths.draw(rng) > longer for _ in range(20_000))
    assert share == pytest.approx(0.01, abs=0.004)


def test_no_text_is_longer_than_the_most() -> None:
    rng = random.Random(2)
    assert max(Lengths(mean=50, sigma=1.0, most=60).draw(rng) for _ in range(1000)) == 60
