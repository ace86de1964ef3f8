"""Counters of the server's metrics page."""

from __future__ import annotations

import re
import time
import urllib.request

from rose_ensemble.metrics import FLUSH_SECONDS

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Page:
    """The page as it was at one moment."""

    def __init__(self, text: str) -> None:
        self._samples = [(name, dict(_LABEL.findall(pairs)), float(v)) for name, pairs, v in _SAMPLE.findall(text)]

    def read(self, name: str, **labels: str) -> int:
        """As `read_float`, for what is counted in ones."""
        return int(self.read_float(name, **labels))

    def read_float(self, name: str, **labels: str) -> float:
        """The value, summed over every sample that carries the labels.

        Raises:
            KeyError: the page has no such sample.
        """
        found = [value for own, has, value in self._samples if own == name and labels.items() <= has.items()]
        if not found:
            raise KeyError(f"{name} {labels}")
        return sum(found)

    def names(self) -> set[str]:
        """Every metric of ours."""
        return {name for name, _, _ in self._samples if name.startswith("rose_")}


class Counters:
    """Reads the page at `url` anew for every value."""

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self, name: str, **labels: str) -> int:
        """As `Page.read`."""
        return self.page().read(name, **labels)

    def read_float(self, name: str, **labels: str) -> float:
        """As `Page.read_float`."""
        return self.page().read_float(name, **labels)

    def settled_page(self) -> Page:
        """The page, once no tokens were run between two looks at it."""
        page = self.page()
        while (later := self.page()).read("rose_tokens_total") != page.read("rose_tokens_total"):
            page = later
        return later

    def page(self) -> Page:
        """The page, once what was counted until now is on it."""
        time.sleep(1.2 * FLUSH_SECONDS)  # counts are handed on a few times a second
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            return Page(answer.read().decode())
