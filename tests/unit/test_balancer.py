"""Choosing a server."""

from __future__ import annotations

from rose_client.balancer import Balancer


def test_the_least_outstanding_tokens_win() -> None:
    balancer = Balancer(3)
    # outstanding before each: 0 0 0, 50 0 0, 50 20 0, 50 20 30, 50 45 30, 50 45 60
    assert [balancer.take(tokens, 0) for tokens in (50, 20, 30, 25, 30, 1)] == [0, 1, 2, 1, 2, 1]


def test_what_is_released_no_longer_counts() -> None:
    balancer = Balancer(2)
    assert [balancer.take(tokens, 0) for tokens in (10, 100)] == [0, 1]
    balancer.release(1, 100)
    assert balancer.take(5, 0) == 1


def test_idle_servers_take_turns() -> None:
    balancer = Balancer(3)
    chosen = []
    for _ in range(6):
        server = balancer.take(7, 0)
        assert server is not None
        balancer.release(server, 7)
        chosen.append(server)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_full_server_is_passed_over() -> None:
    balancer = Balancer(2)
    assert balancer.take(1, 0) == 0
    assert balancer.take(9, 0) == 1
    assert balancer.take(1, 0, full=[0]) == 1
    assert balancer.take(1, 0, full=[0, 1]) is None


def test_a_failed_chunk_goes_elsewhere_if_it_can() -> None:
    balancer = Balancer(2)
    assert balancer.take(100, 0) == 0
    assert balancer.take(1, 0, failed=1) == 0
    assert balancer.take(1, 0, failed=1, full=[0]) == 1
    assert Balancer(1).take(1, 0, failed=0) == 0


def test_a_chunk_never_goes_back_to_a_dead_process_if_there_are_others() -> None:
    balancer = Balancer(2)
    balancer.avoid(0, until=10)
    assert balancer.take(1, 0, dead=1) == 0  # avoided, and still the better one
    assert balancer.take(1, 0, dead=1, full=[0]) is None  # it waits
    assert Balancer(1).take(1, 0, dead=0) == 0


def test_an_avoided_server_gets_nothing_until_its_time_is_over() -> None:
    balancer = Balancer(2)
    balancer.avoid(0, until=10)
    balancer.avoid(0, until=5)
    assert [balancer.take(1, 9.9) for _ in range(3)] == [1, 1, 1]
    assert balancer.take(1, 9.9, full=[1]) is None
    assert balancer.take(1, 10) == 0


def test_somebody_is_there_until_every_server_was_found_absent() -> None:
    balancer = Balancer(2)
    assert balancer.is_anyone_there
    balancer.note(0, absent=True)
    balancer.note(0, absent=True)
    assert balancer.is_anyone_there
    balancer.note(1, absent=True)
    assert not balancer.is_anyone_there
    balancer.note(0, absent=False)
    assert balancer.is_anyone_there


def test_when_all_are_avoided_none_is() -> None:
    balancer = Balancer(2)
    balancer.avoid(0, until=10)
    balancer.avoid(1, until=20)
    assert [balancer.take(1, 0), balancer.take(1, 0)] == [0, 1]
