"""What the server says of itself while it is under load: its metrics page, read every second."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

_SAMPLE = re.compile(r"^(rose_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LANE = re.compile(r'lane="(\w+)"')
_EVERY = 1.0


@dataclass(frozen=True)
class Reading:
    """The page at one moment, summed over models and instances.

    Attributes:
        at: seconds after the watch began.
        queued: tokens that wait, by lane.
        tokens: run so far.
        padding: tokens run for nothing so far.
        refused: requests refused so far, before tokenizing or after.
        batches: run so far.
    """

    at: float
    queued: dict[str, float]
    tokens: float
    padding: float
    refused: float
    batches: float


def read_page(text: str, at: float) -> Reading:
    """Parse what the page holds."""
    found = [(name, labels or "", float(value)) for name, labels, value in _SAMPLE.findall(text)]

    def total(*names: str) -> float:
        return sum(value for name, _, value in found if name in names)

    queued: dict[str, float] = {}
    for name, labels, value in found:
        if name == "rose_queued_tokens" and (lane := _LANE.search(labels)):
            queued[lane[1]] = queued.get(lane[1], 0.0) + value
    return Reading(
        at,
        queued,
        total("rose_tokens_total"),
        total("rose_padding_tokens_total"),
        total("rose_refused_requests_total", "rose_tokenize_refused_total"),
        total("rose_batches_total"),
    )


@dataclass
class Watch:
    """Readings taken in the background, from `with` to its end.

    Attributes:
        url: of the page.
        readings: those taken so far.
        lost: nobody listens there any more: the server has ended.
    """

    url: str
    readings: list[Reading] = field(default_factory=list)
    lost: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _clock: Callable[[], float] = time.perf_counter

    def __enter__(self) -> Watch:
        self._began = self._clock()
        self._thread = threading.Thread(target=self._run, name="metrics-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            try:
                with urllib.request.urlopen(self.url, timeout=10) as answer:  # noqa: S310 (the address we were given)
                    text = answer.read().decode()
            except urllib.error.URLError as error:
                if isinstance(error.reason, ConnectionRefusedError):
                    self.lost = True
                    return
                raise
            self.readings.append(read_page(text, self._clock() - self._began))
