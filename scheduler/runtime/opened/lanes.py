"""The lanes of a session's devices: the waiting steps, and the order of turns.

A lane is shared by all items and all open plans of a session, so the step that frees it may be
giving it a step of another item, or of another plan. All methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import Generic, TypeVar

from ....devices.operator_instances import OperatorInstances
from ...dispatch.ready import ReadyQueue
from ...simulation.workload import SimulatedLane
from .region_guard import OrderGuard

T = TypeVar("T")


class OpenLane(Generic[T]):
    """A `ReadyQueue` for threads.

    Attributes
    ----------
    on_room : callable or None
        Called when nothing more waits for the lane.
    """

    def __init__(self, depth: int) -> None:
        self._lock = threading.Lock()
        self._queue = ReadyQueue[T](depth)
        self.on_room: Callable[[], object] | None = None

    @property
    def is_idle(self) -> bool:
        return self._queue.is_idle

    @property
    def has_waiting(self) -> bool:
        return len(self._queue) > 0

    def offer(self, item: int, rank: int, step: T) -> bool:
        """Return whether the lane gets `step`; if not, `take` returns it by `item` and `rank`."""
        with self._lock:
            return self._queue.offer(item, rank, step)

    def take(self) -> T | None:
        """Note that the lane has done a step; return the next step for it, None if none waits."""
        with self._lock:
            following = self._queue.take()
        on_room = self.on_room  # the loop may take it away meanwhile
        if on_room is not None and not self.has_waiting:
            on_room()
        return following

    def withdraw(self, item: int) -> int:
        """Remove the waiting steps of `item`; return the number of steps that were removed."""
        with self._lock:
            return self._queue.withdraw(item)


_AGE_BITS = 48
"""More items than a session ever runs: one of a higher priority goes before all of lower ones."""


class OpenLanes(Generic[T]):
    """The lanes of the devices of a session, by name, made as plans use them.

    Attributes
    ----------
    order : OrderGuard
        Of the items of all plans.
    instances : OperatorInstances
        Those that keep state from item to item, for all plans.
    """

    def __init__(self) -> None:
        self.order = OrderGuard()
        self.instances = OperatorInstances()
        self._lock = threading.Lock()
        self._lanes: dict[str, OpenLane[T]] = {}
        self._ages = count()

    def of(self, lanes: Iterable[SimulatedLane]) -> list[OpenLane[T]]:
        with self._lock:
            for lane in lanes:
                if lane.name not in self._lanes:
                    self._lanes[lane.name] = OpenLane(lane.depth)
            return [self._lanes[lane.name] for lane in lanes]

    def next_age(self, priority: int = 0) -> int:
        """Return the age of a further item of `priority`; items of lower ages go first."""
        return next(self._ages) - (priority << _AGE_BITS)
