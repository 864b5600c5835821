"""The end of an item: its results are copied out, its slot is free, its times are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import trio

from ...devices.event import CancelledWorkError
from ...graph.errors import PlaitError
from ...graph.tensor import Array
from ..profile.recorder import Recorder
from .executor import Execution
from .handing import follow_readers
from .item import Flight
from .pace import Pace
from .slot import Slot
from .slots import Slots, Turn, session_closed
from .variables import Variables

INLINE_BYTES = 1 << 20
"""More than this is copied on a thread, so that the loop is not held up (1 MB takes 0.1 ms)."""


class Landing:
    """Ends items; used on the trio thread only.

    Parameters
    ----------
    recorder : Recorder
    pace : Pace
    flights : set of Flight
        Those that are under way; whoever lands is taken out.
    variables : Variables
        Told what items assigned that have ended well.
    """

    def __init__(
        self, recorder: Recorder, pace: Pace, flights: set[Flight], variables: Variables
    ) -> None:
        self._recorder = recorder
        self._pace = pace
        self._flights = flights
        self._variables = variables

    def land(self, flight: Flight, slots: Slots, turn: Turn) -> None:
        """Copy an item's results out and free its slot.

        Not when a consumer asks for them: a slow consumer would keep slots from other callers.
        """
        assert flight.execution is not None
        flight.marks.finished_ns = self._pace.now_ns()
        flight.traces = (self._recorder.trace(slots.open_plan, flight.execution),)
        is_small = flight.holds or are_small(turn.slot.results.values())
        is_small = is_small and self._variables.is_quick(turn.slot)
        if is_small or not flight.execution.is_complete:
            results, error = _outcome(flight, flight.execution, turn.slot)
            if may_commit(flight, error):
                self._variables.commit_now(turn.slot, slots.open_plan)
            self._finish(flight, slots, turn, results, error)
        else:
            trio.lowlevel.spawn_system_task(self._land_large, flight, slots, turn)

    def record(self, flight: Flight, error: BaseException | None) -> None:
        """Keep the times of an item."""
        flight.marks.landed_ns = self._pace.now_ns()
        self._recorder.record(flight.traces, flight.marks, error is not None)

    async def _land_large(self, flight: Flight, slots: Slots, turn: Turn) -> None:
        assert flight.execution is not None
        copy = partial(_outcome, flight, flight.execution, turn.slot)
        results, error = await self._pace.on_thread(copy)
        if turn.slot.assigns and may_commit(flight, error):
            try:
                await self._variables.commit(turn.slot, slots.open_plan)
                flight.cause = None  # it is done, whatever came meanwhile
            except PlaitError as failure:
                results, error = {}, failure
        self._finish(flight, slots, turn, results, error)

    def _finish(
        self,
        flight: Flight,
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


def may_commit(flight: Flight, error: BaseException | None) -> bool:
    """True unless an item failed, or was given up before its end."""
    return error is None and flight.cause is None and not flight.cancelled


def _release(flight: Flight, slots: Slots, turn: Turn) -> None:
    """Free an item's slot; devices wait for who reads what was held there."""
    if flight.holds and turn.slot.departures:
        follow_readers(turn.slot.departures)
    slots.release(turn)


def _outcome(
    flight: Flight, execution: Execution, slot: Slot
) -> tuple[Mapping[str, Array], BaseException | None]:
    """Return an item's results, or why there are none."""
    if not execution.is_complete:
        skipped = execution.error is None or isinstance(execution.error, CancelledWorkError)
        return {}, session_closed() if skipped else execution.error
    try:
        taken = flight.take(slot.results)
        return {**taken, **flight.departed} if flight.departed else taken, None
    except (MemoryError, PlaitError) as error:
        return {}, error


def are_small(arrays: Iterable[Array]) -> bool:
    """Say whether arrays may be copied on the loop's thread."""
    nbytes = 0
    for array in arrays:
        nbytes += array.nbytes
    return nbytes <= INLINE_BYTES
