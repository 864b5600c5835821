"""One item going through the steps of an open plan.

Counts are held per item and counted down by whoever completes a step: a lane's thread submits the
dependents itself, without a trip through the trio loop. The loop hears of an item once, at its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from ..devices.event import Event
from .open_plan import OpenPlan, Slot


class Execution:
    """The steps of one item on one slot.

    `on_finish` is called exactly once, on any thread, when every step is complete or, after a
    failure or `cancel`, when the last of the submitted ones has ended: the slot is free then.

    Attributes
    ----------
    error : BaseException or None
        What the first failing step raised.
    ready_ns : list of int
        When each step was submitted, on the `time.perf_counter_ns` clock; 0 if it never was.
    events : list of Event or None
        Each step's event.
    """

    __slots__ = (
        "_complete",
        "_counts",
        "_lock",
        "_obligations",
        "_on_finish",
        "_open_plan",
        "_slot",
        "_stopped",
        "error",
        "events",
        "ready_ns",
    )

    def __init__(self, open_plan: OpenPlan, slot: Slot, on_finish: Callable[[], None]) -> None:
        self._open_plan = open_plan
        self._slot = slot
        self._on_finish = on_finish
        self._lock = threading.Lock()
        self._counts = list(open_plan.waits)
        self._obligations = 1  # submitted steps that have not ended, and threads that submit
        self._complete = 0
        self._stopped = False
        self.error: BaseException | None = None
        self.ready_ns = [0] * len(self._counts)
        self.events: list[Event | None] = [None] * len(self._counts)

    @property
    def is_complete(self) -> bool:
        """True when every step has ended well."""
        return self._complete == len(self._counts)

    def start(self) -> None:
        """Submit every step that waits for nothing."""
        ready = [step for step, count in enumerate(self._counts) if count == 0]
        with self._lock:
            self._obligations += len(ready)
        self._submit(ready)
        self._release()

    def cancel(self) -> None:
        """Submit nothing more and skip what has not started; what runs, ends."""
        with self._lock:
            self._stopped = True
        for event in self.events:
            if event is not None:
                event.cancel()

    def _submit(self, ready: list[int]) -> None:
        """Submit steps whose obligations are counted, and all that may queue behind them."""
        for step in ready:  # grows on the way
            behind = self._open_plan.behind[step]
            self.ready_ns[step] = time.perf_counter_ns()
            try:
                event = self._slot.launches[step](self._native(step), partial(self._ended, step))
            except BaseException as error:  # a lane must survive, and the item must end
                self._ended(step, _failed(error))
                continue
            self.events[step] = event
            if self._stopped:
                event.cancel()
            elif behind:
                with self._lock:
                    ready += self._count_down(behind)

    def _native(self, step: int) -> list[Event]:
        """Return the events that the step's device itself makes it wait for."""
        behind, waits = self._open_plan.behind, self._open_plan.plan.steps[step].waits
        found = (self.events[wait] for wait in waits if step in behind[wait])
        return [event for event in found if event is not None]

    def _ended(self, step: int, event: Event) -> None:
        """Count down the dependents of a step and submit those that are ready."""
        with self._lock:
            if event.error is not None:
                self.error = self.error or event.error
                self._stopped = True
            else:
                self._complete += 1
            ready = [] if self._stopped else self._count_down(self._open_plan.after[step])
        if ready:
            self._submit(ready)
        self._release()

    def _count_down(self, steps: tuple[int, ...]) -> list[int]:
        """Return the steps that became ready; the lock is held."""
        ready = []
        for step in steps:
            self._counts[step] -= 1
            if self._counts[step] == 0:
                ready.append(step)
        self._obligations += len(ready)
        return ready

    def _release(self) -> None:
        with self._lock:
            self._obligations -= 1
            finished = self._obligations == 0
        if finished:
            self._on_finish()


def _failed(error: BaseException) -> Event:
    event = Event()
    event.complete(error)
    return event
