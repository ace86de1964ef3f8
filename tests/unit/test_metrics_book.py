"""What is counted here arrives at the server's samples: nothing twice, nothing lost."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping

from rose_ensemble.metrics import FLUSH_SECONDS, MetricsBook, samples_of
from tests.support.waiting import wait_until


class Sample:
    def __init__(self) -> None:
        self.value = 0.0
        self.changes = 0

    def increment(self, value: float) -> None:
        self.value += value
        self.changes += 1

    def set(self, value: float) -> None:
        self.value = value
        self.changes += 1


class Family:
    """As `pb_utils.MetricFamily`; `last` is the newest that was made, or None once it is freed."""

    COUNTER, GAUGE = "counter", "gauge"
    last: weakref.ref[Family]

    def __init__(self, name: str, description: str, kind: str) -> None:
        type(self).last = weakref.ref(self)

    def Metric(self, labels: Mapping[str, str]) -> Sample:  # noqa: N802 (Triton's name)
        return Sample()


class Server:
    """Keeps the samples it made, by name and by what `le` or `lane` says."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], Sample] = {}

    def __call__(self, name: str, description: str, kind: str, labels: Mapping[str, str]) -> Sample:
        assert labels["model"] == "m"
        sample = self.samples[name, labels.get("le", labels.get("lane", ""))] = Sample()
        return sample


def test_counters_hand_on_what_was_added_since() -> None:
    server = Server()
    book = MetricsBook(server, {"model": "m"})
    counter = book.counter("c", "", lane="online")
    book.flush()
    assert server.samples["c", "online"].changes == 0  # nothing to say
    counter.add()
    counter.add(2)
    book.flush()
    book.flush()
    assert (server.samples["c", "online"].value, server.samples["c", "online"].changes) == (3, 1)


def test_a_histogram_is_cumulative_by_upper_bound() -> None:
    server = Server()
    book = MetricsBook(server, {"model": "m"})
    histogram = book.histogram("h", "", (0.5, 1, 10))
    for value in (0.1, 0.5, 0.6, 2.0, 99.0):
        histogram.observe(value)
    book.flush()
    histogram.observe(1.0)
    book.flush()
    expected = {"0.5": 2, "1": 4, "10": 5, "+Inf": 6}
    assert {le: server.samples["h_bucket", le].value for le in expected} == expected
    assert server.samples["h_count", ""].value == 6
    assert abs(server.samples["h_sum", ""].value - 103.2) < 1e-9


def test_gauges_are_read_anew_and_sent_when_they_change() -> None:
    server, depth = Server(), [5.0]
    book = MetricsBook(server, {"model": "m"})
    book.gauge("g", "", lambda: depth[0])
    book.flush()
    book.flush()
    assert (server.samples["g", ""].value, server.samples["g", ""].changes) == (5.0, 1)
    depth[0] = 0.0
    book.flush()
    assert server.samples["g", ""].value == 0.0


def test_it_flushes_by_itself_and_at_the_end() -> None:
    server = Server()
    book = MetricsBook(server, {"model": "m"})
    counter = book.counter("c", "")

    def count() -> None:
        for _ in range(1000):
            with book.lock:
                counter.add()

    book.start()
    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: server.samples["c", ""].value == 4000, "all are handed on", 20 * FLUSH_SECONDS)
    with book.lock:
        counter.add()
    book.stop()
    assert server.samples["c", ""].value == 4001


def test_families_are_never_freed() -> None:
    """At a process's end Triton 24.10 does not survive it."""
    make = samples_of(Family)
    make("rose_made_up_total", "made up", "counter", {"model": "m"})
    del make
    gc.collect()
    assert Family.last() is not None
