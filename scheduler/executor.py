"""One item going through the steps of an open plan.

Readiness is counted per item, by whoever completes a step: a lane's thread submits the dependents
itself, without a trip through the trio loop. A step that needs a copy of a region which an earlier
item still has is submitted by the thread that releases it. The loop hears of an item once, at its
end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ..devices.event import Event
from .open_plan import OpenPlan, Slot
from .progress import Progress


class Execution:
    """The steps of one item on one slot.

    `on_finish` is called exactly once, on any thread, when every step is complete or, after a
    failure or `cancel`, when the last of the submitted ones has ended: the slot is free then.

    Parameters
    ----------
    open_plan : OpenPlan
    slot : Slot
    on_finish : callable
    number : int, default 0
        The item's number at the gates of the plan, where it has some.

    Attributes
    ----------
    error : BaseException or None
        What the first failing step raised.
    ready_ns : list of int
        When each step was submitted, on the clock of its device; 0 if it never was.
    events : list of Event or None
        Each step's event.
    """

    __slots__ = (
        "_complete",
        "_gates",
        "_lock",
        "_number",
        "_obligations",
        "_on_finish",
        "_open_plan",
        "_progress",
        "_slot",
        "_stopped",
        "error",
        "events",
        "ready_ns",
    )

    def __init__(
        self, open_plan: OpenPlan, slot: Slot, on_finish: Callable[[], None], number: int = 0
    ) -> None:
        self._open_plan = open_plan
        self._gates = open_plan.gates
        self._slot = slot
        self._number = number
        self._on_finish = on_finish
        self._lock = threading.Lock()
        self._progress = Progress(open_plan.waits, open_plan.after)
        # Steps that were ready and have not ended or been given up, and threads that submit.
        self._obligations = 1
        self._complete = 0
        self._stopped = False
        self.error: BaseException | None = None
        self.ready_ns = [0] * len(open_plan.waits)
        self.events: list[Event | None] = [None] * len(open_plan.waits)

    @property
    def is_complete(self) -> bool:
        """True when every step has ended well."""
        return self._complete == len(self.events)

    def start(self) -> None:
        """Submit every step that waits for nothing."""
        with self._lock:
            ready = self._progress.ready()
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
        self._withdraw()

    def _submit(self, ready: list[int]) -> None:
        """Submit steps whose obligations are counted, and all that may queue behind them."""
        plan, gates, launches = self._open_plan, self._gates, self._slot.launches
        for step in ready:  # grows on the way
            if gates is not None and step in gates.claiming and not self._may_start(step):
                continue
            behind = plan.behind[step]
            self.ready_ns[step] = plan.now_ns[step]()
            try:
                event = launches[step](self._waits(plan.ahead[step]), partial(self._ended, step))
            except BaseException as error:  # a lane must survive, and the item must end
                self._ended(step, _failed(error))
                continue
            self.events[step] = event
            if self._stopped:
                event.cancel()
            elif behind:
                with self._lock:
                    newly = self._progress.count_down(behind)
                    self._obligations += len(newly)
                ready += newly

    def _waits(self, steps: tuple[int, ...]) -> list[Event]:
        """Return the events that a device itself is to wait for."""
        return [event for step in steps if (event := self.events[step]) is not None]

    def _ended(self, step: int, event: Event) -> None:
        """Count down the dependents of a step and submit those that are ready."""
        with self._lock:
            if event.error is not None:
                self.error = self.error or event.error
                self._stopped = True
            else:
                self._complete += 1
            ready = [] if self._stopped else self._progress.complete(step)
            self._obligations += len(ready)
        if ready:
            self._submit(ready)
        if self._gates is not None:
            self._pass_on(step, event)
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._obligations -= 1
            finished = self._obligations == 0
        if finished:
            self._on_finish()

    def _may_start(self, step: int) -> bool:
        """Claim what a step needs; whoever releases what is missing resumes it."""
        assert self._gates is not None
        if self._gates.claim(self._number, step, partial(self._resume, step)):
            return True
        if self._stopped:  # whoever stopped the item may not have seen this step wait
            self._withdraw()
        return False

    def _resume(self, step: int) -> None:
        """Submit a step that waited for a copy of a region."""
        with self._lock:
            self._obligations += 1
        self._submit([step])
        self._release()

    def _pass_on(self, step: int, event: Event) -> None:
        """Release what the item needs no longer: later items go on there."""
        assert self._gates is not None
        if event.error is None and step in self._gates.releasing:
            self._gates.complete(self._number, step)
        if self._stopped:
            self._withdraw()

    def _withdraw(self) -> None:
        """Give up the steps that wait for copies of regions."""
        if self._gates is not None:
            for _ in range(self._gates.withdraw(self._number)):
                self._release()


def _failed(error: BaseException) -> Event:
    event = Event()
    event.complete(error)
    return event
