"""Bytes that nobody has read yet, by the port of who sent them."""

from __future__ import annotations

import socket

import pytest

from rose_ensemble.unsent import most_unsent
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_what_nobody_reads_is_counted(family: socket.AddressFamily, host: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with listener:
        port = listener.getsockname()[1]
        with socket.socket(family) as reader, socket.socket(family) as waiting:
            reader.connect(listener.getsockname())
            connection, _ = listener.accept()
            waiting.connect(listener.getsockname())  # not accepted: a queue, but not of bytes
            with connection:
                assert most_unsent([port]) == 0
                connection.setblocking(False)
                sent = 0
                try:
                    while True:
                        sent += connection.send(bytes(1 << 16))
                except BlockingIOError:
                    pass
                assert 0 < most_unsent([1, port]) <= sent
                assert most_unsent([reader.getsockname()[1]]) == 0
                while sent:
                    sent -= len(reader.recv(sent))
                wait_until(lambda: most_unsent([port]) == 0, "all has been taken")
