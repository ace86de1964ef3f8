"""Texts whose lengths are spread as those of real queries and passages.

Lengths are log-normal. Their means are those of MS MARCO in BEIR's table of datasets (Thakur et al., 2021,
arXiv 2104.08663, table 1): 5.96 words a query, 55.98 words a passage. BEIR gives no spread; ours are assumptions, with
which one query in a hundred is longer than 13 words and one passage in a hundred longer than 158. Whoever knows the
lengths of an account's own texts puts their mean and the standard deviation of their logarithms here.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

_WORDS = (Path(__file__).parents[1] / "words.txt").read_text().split()


@dataclass(frozen=True)
class Lengths:
    """A log-normal distribution, rounded to whole words and cut off.

    Attributes:
        mean: words of a text, before rounding and cutting.
        sigma: standard deviation of the length's natural logarithm.
        most: words of the longest text.
    """

    mean: float
    sigma: float
    most: int

    @property
    def mu(self) -> float:
        """Mean of the logarithm: that of a log-normal's mean, less half its variance."""
        return math.log(self.mean) - self.sigma**2 / 2

    def draw(self, rng: random.Random) -> int:
        """A length in words, at least 1."""
        return max(1, min(self.most, round(rng.lognormvariate(self.mu, self.sigma))))


QUERY = Lengths(mean=5.96, sigma=0.40, most=64)
PASSAGE = Lengths(mean=55.98, sigma=0.50, most=400)
DOCUMENT_WORDS = 511
"""Of a document to be scored, all of one length: 512 tokens in Qwen's vocabulary, to which each word is a token."""


def draw_texts(rng: random.Random, count: int, lengths: Lengths) -> list[str]:
    """Texts of random common words; no two are likely to be equal, so that no cache helps."""
    return [" ".join(rng.choices(_WORDS, k=lengths.draw(rng))) for _ in range(count)]
