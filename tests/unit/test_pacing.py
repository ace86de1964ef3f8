"""When the next batch may go, on made-up clocks. Times are seconds."""

from __future__ import annotations

import pytest

from rose_backend.pacing import Pacer


def after_one(tokens: int, seconds: float) -> Pacer:
    """One batch ran from 0 to `seconds`."""
    pacer = Pacer()
    pacer.launched(tokens, 0.0)
    assert pacer.finished(seconds) == pytest.approx((seconds, seconds, 0, 0.0))
    return pacer


def test_an_idle_device_is_never_kept_waiting() -> None:
    assert Pacer().hold(5.0) == 0.0
    assert after_one(8192, 0.016).hold(1.0) == 0.0


def test_a_size_not_seen_yet_holds_nothing_back() -> None:
    pacer = Pacer()
    pacer.launched(8192, 0.0)
    assert pacer.hold(0.001) == 0.0


def test_the_next_waits_until_the_running_one_nears_its_end() -> None:
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    # 16 ms are expected, of which 0.7 ms and a twentieth are kept in hand
    assert pacer.hold(1.0) == pytest.approx(0.016 - 0.0007 - 0.0008)
    assert pacer.hold(1.014) == pytest.approx(0.0005)
    assert pacer.hold(1.0146) == 0.0


def test_a_short_batch_never_holds() -> None:
    pacer = after_one(32, 0.0007)
    pacer.launched(32, 1.0)
    assert pacer.hold(1.0) == 0.0


def test_a_batch_behind_another_starts_when_that_ends() -> None:
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    pacer.launched(8192, 1.015)
    assert pacer.finished(1.016) == pytest.approx((1.016, 0.016, 1, 1.0))
    # from the other's end, not from its own launch
    assert pacer.finished(1.030) == pytest.approx((1.030, 0.014, 0, 1.016))


def test_an_end_noticed_late_makes_no_batch_look_short() -> None:
    """Three batches of 16 ms, back to back from 1.0; the end of the second is noticed 9 ms late."""
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    pacer.launched(8192, 1.015)
    assert pacer.finished(1.016, 1.0) == pytest.approx((1.016, 0.016, 1, 1.0))
    pacer.launched(8192, 1.031)
    assert pacer.finished(1.041, 0.016) == pytest.approx((1.032, 0.016, 1, 1.016), abs=1e-5)
    assert pacer.hold(1.041) == pytest.approx(0.048 - 0.041 - 0.0015, abs=1e-5)
    pacer.launched(8192, 1.047)
    assert pacer.finished(1.048, 0.016) == pytest.approx((1.048, 0.016, 1, 1.032), abs=1e-5)


def test_a_late_end_is_set_right_by_the_next_that_is_noticed_in_time() -> None:
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    pacer.launched(8192, 1.015)
    # not known better: nothing was before it
    assert pacer.finished(1.025, 1.009) == pytest.approx((1.025, 0.025, 1, 1.0))
    assert pacer.finished(1.032, 0.016) == pytest.approx((1.032, 0.016, 0, 1.016))


def test_clocks_that_drift_apart_are_set_right() -> None:
    """The device's is slow by a ten-thousandth, for a minute of batches that are all noticed 0.1 ms late."""
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    ended = 1.016
    for _ in range(3750):
        pacer.launched(8192, ended - 0.001)
        pacer.finished(ended + 1e-4, 0.016 * (1 - 1e-4))
        ended += 0.016
    pacer.launched(8192, ended - 0.001)
    told, seconds, *_ = pacer.finished(ended + 1e-4, 0.016 * (1 - 1e-4))
    assert told == pytest.approx(ended, abs=2e-4)
    assert seconds == pytest.approx(0.016, rel=1e-3)


def test_the_time_between_batches_is_nobodys() -> None:
    """An hour without work, by two clocks that differ by a second after it."""
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 3600.0)
    assert pacer.finished(3600.02, 3599.0) == pytest.approx((3600.02, 0.02, 0, 3600.0))
    pacer.launched(8192, 3600.03)
    # the device says less than was seen
    assert pacer.finished(3600.05, 0.018) == pytest.approx((3600.05, 0.018, 0, 3600.032))


def test_both_under_way_count() -> None:
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    pacer.launched(8192, 1.014)
    assert pacer.hold(1.015) == pytest.approx(0.032 - 0.015 - 0.0015)


def test_a_batch_that_never_started_is_forgotten() -> None:
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    pacer.failed()
    assert pacer.hold(1.0) == 0.0


def test_one_slow_batch_does_not_make_the_next_wait() -> None:
    """Recording a graph takes many times as long as replaying it."""
    pacer = after_one(8192, 0.016)
    pacer.launched(8192, 1.0)
    pacer.finished(1.2)
    pacer.launched(8192, 2.0)
    expected = 0.016 * 1.05
    assert pacer.hold(2.0) == pytest.approx(expected - 0.0007 - 0.05 * expected)


def test_the_quickest_counts_at_once_and_is_forgotten_slowly() -> None:
    pacer = after_one(8192, 0.2)  # the first of its size was recorded
    for start in (1.0, 2.0):
        pacer.launched(8192, start)
        pacer.finished(start + 0.016)
    for start in range(3, 103):  # the device has become slower for good
        pacer.launched(8192, float(start))
        pacer.finished(start + 0.03)
    pacer.launched(8192, 200.0)
    assert pacer.hold(200.0) == pytest.approx(0.03 - 0.0007 - 0.0015)


def test_tokens_per_second_follow_the_device() -> None:
    pacer = after_one(1000, 0.5)
    assert pacer.tokens_per_second == pytest.approx(2000.0)
    pacer.launched(1000, 1.0)
    pacer.finished(2.0)  # 1,000 a second: a fifth of the way there
    assert pacer.tokens_per_second == pytest.approx(1800.0)


def test_what_fails_inside_a_batch_is_not_its_time() -> None:
    pacer = after_one(1024, 0.1)
    pacer.launched(1024, 1.0)
    pacer.stood_still(0.03)
    assert pacer.finished(1.13) == pytest.approx((1.13, 0.1, 0, 1.0))
    assert pacer.tokens_per_second == pytest.approx(1024 / 0.1)


def test_a_batch_inside_another_has_its_own_time() -> None:
    """A batch of 100 ms, launched at 1.0, stands still for 20 ms and for 10."""
    pacer = after_one(1024, 0.1)
    pacer.launched(1024, 1.0)
    assert pacer.finished_inside(32, 1.03, 1.05) == pytest.approx((1.05, 0.02, 1, 1.03))
    assert pacer.finished_inside(16, 1.07, 1.08) == pytest.approx((1.08, 0.01, 1, 1.07))
    assert pacer.hold(1.08) == pytest.approx(0.05 - 0.0007 - 0.005)  # half of it is done
    assert pacer.finished(1.13) == pytest.approx((1.13, 0.1, 0, 1.0))
    # what ran inside counts as any other: four batches' rates, the newest with a fifth of the weight each
    rate = 1024 / 0.1
    for latest in (32 / 0.02, 16 / 0.01, 1024 / 0.1):
        rate += (latest - rate) * 0.2
    assert pacer.tokens_per_second == pytest.approx(rate)


def test_what_stood_still_before_the_device_was_free_is_not_counted_twice() -> None:
    """The end of a batch is noticed so late that the next one, of 100 ms, has stood still for 40 ms by then."""
    pacer = after_one(1024, 0.1)
    pacer.launched(1024, 1.0)
    pacer.launched(1024, 1.05)
    pacer.stood_still(0.04)
    assert pacer.finished(1.2) == pytest.approx((1.2, 0.2, 1, 1.0))
    assert pacer.hold(1.2) == pytest.approx(
        0.105 * 0.95 - 0.0007
    )  # a batch that took longer lets a twentieth be forgotten
    pacer.stood_still(0.01)
    assert pacer.finished(1.31) == pytest.approx((1.31, 0.1, 0, 1.2))
