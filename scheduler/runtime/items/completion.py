"""The end of an item: its results are copied out, its slot is free, its times are kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from ....devices.event import CancelledWorkError
from ....graph.errors import PlaitError
from ....graph.tensor import Array
from ...costs.host import AFTER_LAST_BYTES, INLINE_BYTES
from ..opened.copying import nbytes_of
from ..opened.slot import Slot
from ..opened.slots import Slots, Turn, session_closed
from ..recorder import Recorder
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver
from .device_io import follow_readers
from .executor import Execution
from .item import ItemRun, Outcome


class ItemCompletion:
    """Ends items; used on the trio thread only, but for `take`.

    Parameters
    ----------
    recorder : Recorder
    pace : VirtualTimeDriver
    flights : set of ItemRun
        Those that are under way; whoever lands is taken out.
    variables : Variables
        Told what items assigned that have ended well.
    """

    def __init__(
        self,
        recorder: Recorder,
        pace: VirtualTimeDriver,
        flights: set[ItemRun],
        variables: Variables,
    ) -> None:
        self._recorder = recorder
        self._pace = pace
        self._flights = flights
        self._variables = variables

    def take(self, flight: ItemRun, slot: Slot) -> None:
        """Copy an item's results out where its last step ended, unless that takes long.

        They lie in that thread's caches, and the loop has one turn for the item, not three. Not
        when a consumer asks for them: a slow consumer would keep slots from other callers.
        """
        assert flight.execution is not None
        flight.marks.finished_ns = self._pace.now_ns()
        if not flight.execution.is_complete:
            return
        most = INLINE_BYTES if trio.lowlevel.in_trio_run() else AFTER_LAST_BYTES
        if flight.holds or nbytes_of(slot.results.values()) <= most:
            flight.outcome = _taken(flight, slot)

    def land(self, flight: ItemRun, slots: Slots, turn: Turn) -> None:
        """End an item, with its results where `take` has them, and free its slot."""
        assert flight.execution is not None
        flight.traces = (self._recorder.trace(slots.open_plan, flight.execution),)
        if not flight.execution.is_complete:
            self._finish(flight, slots, turn, {}, _reason(flight.execution))
        elif flight.outcome is None or not self._variables.is_quick(turn.slot):
            trio.lowlevel.spawn_system_task(self._land_large, flight, slots, turn)
        else:
            results, error = flight.outcome
            if may_commit(flight, error):
                self._variables.commit_now(turn.slot, slots.open_plan)
            self._finish(flight, slots, turn, results, error)

    def record(self, flight: ItemRun, error: BaseException | None) -> None:
        """Keep the times of an item."""
        flight.marks.landed_ns = self._pace.now_ns()
        self._recorder.record(flight.traces, flight.marks, error is not None)

    async def _land_large(self, flight: ItemRun, slots: Slots, turn: Turn) -> None:
        outcome = flight.outcome
        if outcome is None:
            outcome = await self._pace.on_thread(partial(_taken, flight, turn.slot))
        results, error = outcome
        if turn.slot.assigns and may_commit(flight, error):
            try:
                await self._variables.commit(turn.slot, slots.open_plan)
                flight.cause = None  # it is done, whatever came meanwhile
            except PlaitError as failure:
                results, error = {}, failure
        self._finish(flight, slots, turn, results, error)

    def _finish(
        self,
        flight: ItemRun,
        slots: Slots,
        turn: Turn,
        results: Mapping[str, Array],
        error: BaseException | None,
    ) -> None:
        if not flight.is_part:
            self.record(flight, flight.cause or error)
        self._flights.discard(flight)
        self._variables.leave(flight)
        flight.land(results, error, partial(_release, flight, slots, turn))


def may_commit(flight: ItemRun, error: BaseException | None) -> bool:
    """True unless an item failed, or was given up before its end."""
    return error is None and flight.cause is None and not flight.cancelled


def _release(flight: ItemRun, slots: Slots, turn: Turn) -> None:
    """Free an item's slot; devices wait for who reads what was held there."""
    if flight.holds and turn.slot.departures:
        follow_readers(turn.slot.departures)
    slots.release(turn)


def _taken(flight: ItemRun, slot: Slot) -> Outcome:
    """Return an item's results, or why there is no room for them."""
    try:
        taken = flight.take(slot.results)
        return {**taken, **flight.departed} if flight.departed else taken, None
    except (MemoryError, PlaitError) as error:
        return {}, error


def _reason(execution: Execution) -> BaseException:
    """Return why an item has no results."""
    error = execution.error
    return session_closed() if error is None or isinstance(error, CancelledWorkError) else error
