"""The number of replicas: it grows while items wait, and shrinks after some have been idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from ...errors import SessionError

CROWDED_S = 1.0
"""Replicas are added once items have waited for this time, about as long as a start takes."""

IDLE_S = 60.0
"""A replica is stopped once it has been idle for this time."""


@dataclass(frozen=True, slots=True)
class Size:
    """The limits of a pool's number of replicas, and the times after which it changes.

    Raises SessionError if the limits are invalid.
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
    """A decision about the number of replicas."""

    start: int = 0
    """The number of replicas to start."""
    stop: tuple[str, ...] = ()
    """The replicas to stop."""
    again: float = inf
    """The time of the next decision, unless something changes before."""


class Autoscaler:
    """Decides when to start and stop replicas; reads no clock."""

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
        """Decide at time `now` which replicas to start and stop.

        There are `count` replicas, of which `starting` ones start, and may take waiting items. A
        replica has room for `room` items; `waiting` is the number of items beyond the room of all.
        `idle` has, for each idle replica, including starting ones, the time since when it is.
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
