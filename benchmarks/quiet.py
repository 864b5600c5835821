"""The quietness of the machine: how much of its time went to anybody else."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Watch:
    """Counts, from when it is made, the seconds that the cores spent on other processes."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._before = _busy_s() - _own_s()

    def disturbance(self) -> float:
        """Return the share of the time for which another process kept a core busy."""
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        return max(0.0, _busy_s() - _own_s() - self._before) / elapsed


def wait_until_quiet(most: float, limit_s: float, look_s: float = 0.5) -> bool:
    """Wait until others leave the cores alone; False when that takes too long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        watch = Watch()
        time.sleep(look_s)
        if watch.disturbance() <= most:
            return True
    return False


def _busy_s() -> float:
    """Return the seconds that all cores were busy, or stolen by the machine's host."""
    user, nice, system, _idle, _wait, irq, softirq, steal = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def _own_s() -> float:
    """Return the seconds that this process and its children were busy."""
    own, spent = os.getpid(), 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(folder.name) == own or int(fields[1]) == own:
                spent += int(fields[11]) + int(fields[12])
    return spent / TICKS_PER_S
