"""The number of replicas: more while items wait, fewer when some have had nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from ...errors import SessionError

CROWDED_S = 1.0
"""Items wait for so long before replicas are added: starting one takes about as long."""

IDLE_S = 60.0
"""A replica has nothing to do for so long before it is given back."""


@dataclass(frozen=True, slots=True)
class Size:
    """Between how many replicas a pool may have, and when that changes.

    Raises
    ------
    SessionError
        If that makes no sense.
    """

    least: int
    most: int
    crowded_s: float = CROWDED_S
    idle_s: float = IDLE_S

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise SessionError(
                f"a pool of {self.least} to {self.most} replicas cannot be",
                fix="give how many, such as n=4, or the least and the most, such as n=(1, 16)",
            )


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done now, and when to look again.

    Attributes
    ----------
    start : int
        How many replicas are to be started.
    stop : tuple of str
        Which are to be stopped.
    again : float
        At this moment, unless something happens before.
    """

    start: int = 0
    stop: tuple[str, ...] = ()
    again: float = inf


class Autoscaler:
    """Decides when replicas come and go; it is told the time.

    Parameters
    ----------
    size : Size
    """

    def __init__(self, size: Size) -> None:
        self._size = size
        self._crowded_since: float | None = None

    def look(
        self,
        now: float,
        count: int,
        starting: int,
        waiting: int,
        room: int,
        idle: Mapping[str, float],
    ) -> Change:
        """Return what to do.

        Parameters
        ----------
        now : float
        count : int
            How many replicas there are, those that are being started included.
        starting : int
            How many are being started: items that wait may be for them.
        waiting : int
            How many items no replica has room for.
        room : int
            How many items a replica has room for.
        idle : Mapping of str to float
            The replicas that have nothing to do, and since when; those that are being started, too.
        """
        size = self._size
        if not waiting:
            self._crowded_since = None
            return self._fewer(now, count, idle)
        if self._crowded_since is None:
            self._crowded_since = now
        if starting or count >= size.most:
            return Change()
        until = self._crowded_since + size.crowded_s
        if now < until:
            return Change(again=until)
        self._crowded_since = now
        return Change(start=min(size.most - count, ceil(waiting / room)))

    def _fewer(self, now: float, count: int, idle: Mapping[str, float]) -> Change:
        spare = count - self._size.least
        longest = sorted(idle, key=lambda name: (idle[name], name))[: max(0, spare)]
        stop = tuple(name for name in longest if now >= idle[name] + self._size.idle_s)
        rest = [idle[name] + self._size.idle_s for name in longest if name not in stop]
        return Change(stop=stop, again=min(rest, default=inf))
