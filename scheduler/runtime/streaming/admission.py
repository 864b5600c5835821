"""The line that items stand in between their source and their slots.

The source is asked for the next item while earlier ones wait for slots: how many items are alive is
not for the memory to decide. What waits has inputs of its own, for the source may use its arrays
again for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from ....graph.tensor import Array
from ..items.input_staging import copied
from ..items.item import ItemRun, copies, views
from ..opened.slots import session_closed
from .batching import Batch, Batching
from .carrier import Carrier
from .deadlines import Deadlines
from .options import StreamOptions


class AdmissionQueue:
    """Starts items in the order they come; used on the trio thread only.

    Parameters
    ----------
    runtime : Carrier
    options : StreamOptions
    batching : Batching or None
    on_done : callable
        Called with every item that was put in, when it is done.
    is_stuck : callable
        Says whether no item comes or goes as long as nothing is done here.

    Attributes
    ----------
    deadlines : Deadlines or None
        Whose `run` somebody must call while there may be items.
    """

    def __init__(
        self,
        runtime: Carrier,
        options: StreamOptions,
        batching: Batching | None,
        on_done: Callable[[ItemRun], object],
        is_stuck: Callable[[], bool],
    ) -> None:
        self.deadlines: Deadlines | None = None
        if options.deadline_s is not None:
            self.deadlines = Deadlines(options.deadline_s, self._give_up)
        self._runtime = runtime
        self._options = options
        self._batching = batching
        self._on_done = on_done
        self._is_stuck = is_stuck
        self._waiting: dict[ItemRun, Mapping[str, Any]] = {}
        self._under_way: set[ItemRun] = set()
        self._arrivals = trio.lowlevel.ParkingLot()
        self._spares = runtime.spares
        most = options.max_in_flight * len(runtime.plan.graph.inputs)
        self._spares.most = max(self._spares.most, most)
        self._rooms: dict[ItemRun, dict[str, Array]] = {}
        self._ended = False
        self._admitting: ItemRun | None = None
        self._admission = trio.CancelScope()

    @property
    def starts_at_once(self) -> bool:
        """True when items may start, and end, without having been in the line."""
        return self._batching is None and self.deadlines is None and self._options.copy

    def new_flight(self) -> ItemRun:
        """Return an item that is to be put in."""
        copy = self._options.copy
        return ItemRun(take=copies if copy else views, holds=not copy, on_done=self._done)

    @trio.lowlevel.enable_ki_protection
    async def put(self, flight: ItemRun, inputs: Mapping[str, Any]) -> None:
        """Start an item, or have it wait at the end of the line; its source may go on."""
        if self.deadlines is not None:
            self.deadlines.add(flight)
        is_first = not self._waiting and self._admitting is None and self._batching is None
        if is_first and await self._start_at_once(flight, inputs):
            return
        try:
            room = self._spares.room_for(inputs)
            own = partial(copied, inputs, room)
            self._waiting[flight] = await self._runtime.copying(room.values(), own)
        except Exception as error:  # there may be no memory for it
            flight.finish(error=error)
            return
        self._rooms[flight] = room
        if self._arrivals:
            self._arrivals.unpark_all()

    def end(self) -> None:
        """Let no more come."""
        self._ended = True
        self._arrivals.unpark_all()

    def look_again(self) -> None:
        """Find out whether `is_stuck`: then a batch goes as it is."""
        if self._batching is not None and self._arrivals:
            self._arrivals.unpark_all()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Start one after the other until the line has ended."""
        batching = self._batching
        if batching is None:
            while await self._arrived():
                flight, inputs = self._pop()
                await self._admit(flight, inputs)
        else:
            while (batch := await self._gather(batching)).members:
                await self._admit(batch.flight, batch)

    async def drain(self) -> None:
        """Cancel everything and wait for what runs to end; nobody may `run` it any more."""
        while self._waiting:
            flight, _ = self._pop()
            self._take_back(flight)
            flight.finish(error=session_closed())
        await self._runtime.drain(self._under_way)

    async def _gather(self, batching: Batching) -> Batch:
        """Wait until a batch is full, or has waited long enough, or no more can come to it."""
        batch, until = Batch(batching, self._under_way.discard), float("inf")
        patience_s = self._options.max_delay_s
        try:
            while not batch.is_full and await self._arrived(batch, until) and self._join(batch):
                if patience_s is not None and len(batch.members) == 1:
                    until = trio.current_time() + patience_s
        except BaseException as error:
            batch.flight.finish(error=error)
            raise
        return batch

    async def _arrived(self, batch: Batch | None = None, until: float = float("inf")) -> bool:
        """Wait for an item; False if that takes too long, or no more come."""
        while not self._waiting and not self._ended:
            if batch is not None and batch.members and not self._under_way and self._is_stuck():
                return False
            if until == float("inf"):
                await self._arrivals.park()
                continue
            with trio.move_on_at(until) as patience:
                await self._arrivals.park()
            if patience.cancelled_caught:
                return False
        return bool(self._waiting)

    def _join(self, batch: Batch) -> bool:
        """Take the first in the line into a batch; False, and leave it there, if it has to wait."""
        flight, inputs = next(iter(self._waiting.items()))
        try:
            if not batch.add(flight, inputs):
                return False
        except Exception as error:  # whatever is wrong with it is its own
            self._take_back(flight)
            flight.finish(error=error)
        self._pop()
        return True

    def _take_back(self, flight: ItemRun) -> None:
        """Keep the arrays that an item waited with for others."""
        self._spares.take_back(self._rooms.pop(flight, {}).values())

    def _pop(self) -> tuple[ItemRun, Mapping[str, Any]]:
        flight = next(iter(self._waiting))
        return flight, self._waiting.pop(flight)

    async def _start_at_once(self, flight: ItemRun, inputs: Mapping[str, Any]) -> bool:
        """Start an item if there is a slot for it, and say whether it needs to wait no more."""
        self._admitting = flight
        self._under_way.add(flight)
        is_started = False
        try:
            options = self._options
            is_started = await self._runtime.admit_at_once(
                inputs, options.slots, flight, options.names
            )
        except Exception as error:
            flight.finish(error=error)
            return True
        finally:
            self._admitting = None
            if not is_started:
                self._under_way.discard(flight)
        if is_started and flight.was_given_up():  # meanwhile
            flight.cancel()
        return is_started

    async def _admit(self, flight: ItemRun, inputs: Mapping[str, Any] | Batch) -> None:
        """Start an item as soon as there is a slot."""
        self._admitting = flight
        self._under_way.add(flight)
        try:
            if flight.was_given_up() or (isinstance(inputs, Batch) and inputs.is_deserted):
                flight.finish()
            elif self.deadlines is None:
                await self._start(flight, inputs)
            else:
                with trio.CancelScope() as self._admission:
                    await self._start(flight, inputs)
                if self._admission.cancelled_caught:
                    flight.finish()
        except BaseException as error:
            flight.finish(error=error)
            if not isinstance(error, Exception):  # a cancellation, not a failure of the item
                raise
        finally:
            self._admitting = None
            for member in inputs.members if isinstance(inputs, Batch) else (flight,):
                self._take_back(member)
        if flight.was_given_up():  # at the last moment
            flight.cancel()

    async def _start(self, flight: ItemRun, inputs: Mapping[str, Any] | Batch) -> None:
        if isinstance(inputs, Batch):
            inputs = await self._runtime.copying(inputs.arrays(), inputs.stacked)
        await self._runtime.admit(inputs, self._options.slots, flight, self._options.names)

    def _give_up(self, flight: ItemRun, cause: BaseException) -> None:
        """Fail an item, wherever it is; what runs of it ends first."""
        flight.cause = cause
        if self._waiting.pop(flight, None) is not None:
            self._take_back(flight)
            flight.finish()
        elif flight.batch is None:
            self._abandon(flight)
        else:
            flight.finish()  # the others of the batch go on
            shared = flight.batch.flight
            if flight.batch.is_deserted and shared in self._under_way:  # nobody joins it any more
                shared.cause = cause
                self._abandon(shared)

    def _abandon(self, flight: ItemRun) -> None:
        if flight is self._admitting:
            self._admission.cancel()
        else:
            flight.cancel()

    def _done(self, flight: ItemRun) -> None:
        self._under_way.discard(flight)
        self._runtime.announce(flight.marks, flight.error)
        self._on_done(flight)
        self.look_again()
