"""Counters, gauges and histograms added up in this process and handed to the server a few times a second.

Each change of one of the server's own metrics is a message between processes, which thousands of requests a second
would feel. A histogram is counters, as Prometheus stores it: `<name>_bucket{le=...}`, `<name>_sum`, `<name>_count`.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

FLUSH_SECONDS = 0.5

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of histograms of times."""
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Bounds of histograms of tokens."""
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Bounds of histograms of sequences."""


class Sample(Protocol):
    """One of the server's metrics, as its Python backend offers it."""

    def increment(self, value: float) -> None:
        """Add to it."""

    def set(self, value: float) -> None:
        """Replace it."""


MakeSample = Callable[[str, str, str, Mapping[str, str]], Sample]
"""Name, description, `counter` or `gauge`, labels."""


def samples_of(metric_family: Any) -> MakeSample:
    """How to make the server's metrics with its Python backend's class `MetricFamily`."""
    families: dict[str, Any] = {}
    kinds = {"counter": metric_family.COUNTER, "gauge": metric_family.GAUGE}

    def make(name: str, description: str, kind: str, labels: Mapping[str, str]) -> Sample:
        if name not in families:
            families[name] = family = metric_family(name, description, kinds[kind])
            # For good: a family that is freed takes its metrics with it, and ends its process with a segmentation fault
            # where that is after its memory shared with the server was given back, as at a process's end (24.10).
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(family))
        sample: Sample = families[name].Metric(labels=dict(labels))
        return sample

    return make


class Counter:
    """A sum that only grows. Not locked: each one belongs to the lock of its book."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._added = 0.0

    def add(self, value: float = 1) -> None:
        """Count."""
        self._added += value

    def take(self) -> Callable[[], None] | None:
        """How to hand on what was counted since the last time; None: nothing was."""
        added, self._added = self._added, 0.0
        return (lambda: self._sample.increment(added)) if added else None


class Histogram:
    """Counts by upper bound; each bucket includes those below it, as Prometheus wants it, once it is handed on."""

    def __init__(self, bounds: Sequence[float], buckets: Sequence[Counter], total: Counter) -> None:
        self._bounds = bounds
        self._buckets = buckets
        self._seen = [0] * len(buckets)
        self._total = total

    def observe(self, value: float) -> None:
        """Count one value."""
        self._seen[bisect.bisect_left(self._bounds, value)] += 1
        self._total.add(value)

    def settle(self) -> None:
        """Carry what was seen to the buckets."""
        below = 0
        for index, bucket in enumerate(self._buckets):
            below += self._seen[index]
            bucket.add(below)
            self._seen[index] = 0


class MetricsBook:
    """Everything one process counts, and the thread that hands it on.

    Args:
        make_sample: makes one of the server's metrics.
        labels: that every sample carries.
    """

    def __init__(self, make_sample: MakeSample, labels: Mapping[str, str]) -> None:
        self._make_sample = make_sample
        self._labels = dict(labels)
        self._counters: list[Counter] = []
        self._histograms: list[Histogram] = []
        self._gauges: list[tuple[Sample, Callable[[], float]]] = []
        self._totals: list[tuple[Counter, Callable[[], float]]] = []
        self._counted: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self.lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rose-metrics", daemon=True)

    def counter(self, name: str, description: str, **labels: str) -> Counter:
        """A counter; to be changed while holding `lock`."""
        counter = Counter(self._make_sample(name, description, "counter", {**self._labels, **labels}))
        self._counters.append(counter)
        return counter

    def histogram(self, name: str, description: str, bounds: Sequence[float], **labels: str) -> Histogram:
        """A histogram; to be changed while holding `lock`."""
        marks = [*(f"{bound:g}" for bound in bounds), "+Inf"]
        buckets = [self.counter(f"{name}_bucket", description, **labels, le=mark) for mark in marks]
        count = self.counter(f"{name}_count", description, **labels)  # what the bucket without a bound counts
        histogram = Histogram(bounds, [*buckets, count], self.counter(f"{name}_sum", description, **labels))
        self._histograms.append(histogram)
        return histogram

    def running_total(self, name: str, description: str, read: Callable[[], float], **labels: str) -> None:
        """A counter that somebody else keeps; what it grew by is handed on."""
        self._totals.append((self.counter(name, description, **labels), read))

    def gauge(self, name: str, description: str, read: Callable[[], float], **labels: str) -> None:
        """A value that is read anew for every hand-over."""
        self._gauges.append((self._make_sample(name, description, "gauge", {**self._labels, **labels}), read))

    def start(self) -> None:
        """Hand on what there is, then do so again and again."""
        self._thread.start()

    def stop(self) -> None:
        """Hand on what is left."""
        self._stopped.set()
        self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Hand on what changed."""
        with self.lock:
            for index, (counter, read) in enumerate(self._totals):
                total = read()
                counter.add(total - self._counted.get(index, 0.0))
                self._counted[index] = total
            for histogram in self._histograms:
                histogram.settle()
            changes = [change for counter in self._counters if (change := counter.take()) is not None]
        for change in changes:  # without the lock: each of them is a message to the server
            change()
        for index, (sample, read) in enumerate(self._gauges):
            value = read()
            if self._last.get(index) != value:
                self._last[index] = value
                sample.set(value)

    def _run(self) -> None:
        self.flush()
        while not self._stopped.wait(FLUSH_SECONDS):
            self.flush()
