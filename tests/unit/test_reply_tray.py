"""Which answers go back with the call."""

from __future__ import annotations

import threading

from rose_ensemble.reply_tray import ReplyTray


def test_answers_stand_where_their_requests_do() -> None:
    tray = ReplyTray(3)
    assert tray.put(2, "c")
    assert tray.put(0, "a")
    assert tray.take() == ["a", None, "c"]


def test_a_call_without_answers_returns_nothing() -> None:
    assert ReplyTray(2).take() is None


def test_what_comes_after_the_call_needs_its_sender() -> None:
    tray = ReplyTray(2)
    assert tray.put(0, "a")
    returned = tray.take()
    assert not tray.put(1, "late")
    assert returned == ["a", None]


def test_another_threads_answer_needs_its_sender() -> None:
    """It may come at the very moment when the call ends."""
    tray = ReplyTray(1)
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(tray.put(0, "a")))
    other.start()
    other.join()
    assert taken == [False]
    assert tray.take() is None
