"""How many cores this process may use: a container's limit in time as well as the ones it is bound to."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_2 = Path("/sys/fs/cgroup/cpu.max")  # "<quota> <period>" in microseconds, or "max <period>"
_CGROUP_1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")  # -1: none


def usable_cores() -> int:
    """The cores of its affinity, or as many as its control group's quota comes to if that is fewer; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota() -> float | None:
    """Cores' worth of time, as a container sees its own group; None: no limit, or none that can be read."""
    try:
        numbers = _CGROUP_2.read_text().split() if _CGROUP_2.exists() else [path.read_text() for path in _CGROUP_1]
        quota, period = (int(number) for number in numbers)
    except (OSError, ValueError):  # no control groups, or "max"
        return None
    return quota / period if quota > 0 and period > 0 else None
