"""Answers that still leave a server, as /proc shows its sockets."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"  # its queue is of connections


def most_unsent(ports: Collection[int]) -> int:
    """Bytes that wait for somebody to read them in that connection of these local ports where most do.

    The columns are those of proc(5): a number, local and remote address, state, and the queues, all hexadecimal.
    """
    most = 0
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except (FileNotFoundError, PermissionError):  # a system without IPv6, or one that hides them
            continue
        for line in lines:
            _, local, _, state, queues, *_ = line.split()
            if state != _LISTENS and int(local.rpartition(":")[2], 16) in ports:
                most = max(most, int(queues.partition(":")[0], 16))
    return most
