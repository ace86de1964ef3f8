"""Made-up texts of many lengths, every one different from every other."""

from __future__ import annotations

import random

_WORDS = [
    "harbour",
    "tide",
    "ferry",
    "rope",
    "anchor",
    "gull",
    "lantern",
    "oak",
    "meadow",
    "violin",
    "tractor",
    "kettle",
    "bread",
    "yeast",
    "copper",
    "ledger",
    "engine",
    "bridge",
    "winter",
    "market",
    "pepper",
    "saddle",
    "velvet",
    "planet",
    "orchard",
    "thunder",
    "pencil",
    "mirror",
    "castle",
    "river",
]


def make_texts(count: int, *, longest: int, seed: int) -> list[str]:
    """`count` different texts of 1 to `longest` words."""
    draw = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[" ".join(draw.choices(_WORDS, k=draw.randint(1, longest)))] = None
    return list(texts)
