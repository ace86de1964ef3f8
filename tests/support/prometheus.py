"""Counters of the server's metrics page."""

from __future__ import annotations

import re
import time
import urllib.request

from rose_ensemble.metrics import FLUSH_SECONDS

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Counters:
    """Reads the page at `url` anew for every value."""

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self, name: str, **labels: str) -> int:
        """As `read_float`, for what is counted in ones."""
        return int(self.read_float(name, **labels))

    def read_float(self, name: str, **labels: str) -> float:
        """The value, summed over every sample that carries the labels.

        Raises:
            KeyError: the page has no such sample.
        """
        samples = [
            float(value)
            for found, pairs, value in _SAMPLE.findall(self.page())
            if found == name and labels.items() <= dict(_LABEL.findall(pairs)).items()
        ]
        if not samples:
            raise KeyError(f"{name} {labels}")
        return sum(samples)

    def names(self) -> set[str]:
        """Every metric of ours on the page."""
        return {found for found, _, _ in _SAMPLE.findall(self.page()) if found.startswith("rose_")}

    def page(self) -> str:
        """The page, once what was counted until now is on it."""
        time.sleep(1.2 * FLUSH_SECONDS)  # counts are handed on a few times a second
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            return str(answer.read().decode())
