"""The queue that items stand in between their source and their slots.

The source is asked for the next item while earlier ones wait for slots: how many items are alive is
not for the memory to decide. Waiting items have inputs of their own, for the source may use its
arrays again for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from ....devices.errors import DeviceLostError
from ....graph.values.tensor import Array
from ...errors import session_closed_error
from ...profile.timestamps import Timestamps
from ..items.deadlines import Deadlines
from ..items.item import ItemRun
from ..opened.results import copy_results, view_results
from .batching import Batch, Batching
from .carrier import Carrier
from .options import StreamOptions


class AdmissionQueue:
    """Starts items in the order they come; used on the trio thread only.

    `is_stuck` says whether no item comes or goes as long as nothing is done here. `runs_here` is
    true if an item that is alone may run on the loop. `deadlines.run` must be called while there
    may be items.
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
        self.runs_here = True
        self._ends: set[int] = set()  # places in the source
        self._next = 0
        self._admitting: ItemRun | None = None
        self._admission = trio.CancelScope()

    @property
    def starts_at_once(self) -> bool:
        """True when items may start, and end, without having been in the queue."""
        return self._batching is None and self.deadlines is None and self._options.copy

    @property
    def may_stack(self) -> bool:
        """Whether batches may start and end without having been in the queue."""
        options = self._options
        is_plain = options.key is None and options.max_delay_s is None and self.deadlines is None
        can_run = self._batching is not None and not self._runtime.keys.are_read
        return is_plain and can_run and options.copy

    def new_item_run(self, index: int, marks: Timestamps) -> ItemRun:
        copy = self._options.copy
        take = copy_results if copy else view_results
        item_run = ItemRun(take=take, holds=not copy, on_done=self._done, marks=marks)
        item_run.index = index
        return item_run

    @trio.lowlevel.enable_ki_protection
    async def put(
        self, item_run: ItemRun, inputs: Mapping[str, Any], waited_s: float = 0.0
    ) -> None:
        """Start `item_run` on `inputs`, or queue it; its source may go on.

        `waited_s` is for how long it has been on its way: that counts for its deadline.
        """
        if self.deadlines is not None:
            self.deadlines.add(item_run, waited_s)
            if item_run.done.is_set():
                return
        is_first = not self._waiting and self._admitting is None and self._batching is None
        if is_first and await self._start_at_once(item_run, inputs):
            return
        await self._enqueue(item_run, inputs)

    async def _enqueue(self, item_run: ItemRun, inputs: Mapping[str, Any]) -> None:
        try:
            room = self._spares.room_for(inputs)
            own = partial(self._spares.copy_into, inputs, room)
            self._waiting[item_run] = await self._runtime.copying(room.values(), own)
        except Exception as error:  # there may be no memory for it
            item_run.finish(error=error)
            return
        self._rooms[item_run] = room
        item_run.owns_inputs = self._batching is None  # until it is done
        if self._arrivals:
            self._arrivals.unpark_all()

    def end(self) -> None:
        self._ended = True
        self._arrivals.unpark_all()

    def end_batch(self, place: int) -> None:
        self._ends.add(place)
        self.look_again()

    def look_again(self) -> None:
        """Find out whether `is_stuck`: then a batch goes as it is."""
        if self._batching is not None and self._arrivals:
            self._arrivals.unpark_all()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        batching = self._batching
        if batching is None:
            while await self._arrived():
                item_run, inputs = self._pop()
                await self._admit(item_run, inputs)
                await self._pause(item_run)
        else:
            while (batch := await self._gather(batching)).members:
                await self._admit(batch.item_run, batch)
                await self._pause(batch.item_run)

    async def drain(self) -> None:
        """Cancel everything and wait for running items; `run` must have ended."""
        while self._waiting:
            item_run, _ = self._pop()
            self._take_back(item_run)
            item_run.finish(error=session_closed_error())
        await self._runtime.drain(self._under_way)

    async def _gather(self, batching: Batching) -> Batch:
        batch, until = Batch(batching, self._end_batch), float("inf")
        patience_s = self._options.max_delay_s
        try:
            while not batch.is_full and await self._arrived(batch, until) and self._join(batch):
                if patience_s is not None and len(batch.members) == 1:
                    until = trio.current_time() + patience_s
        except BaseException as error:
            batch.item_run.finish(error=error)
            raise
        self._ends = {end for end in self._ends if end > self._next}
        return batch

    def _end_batch(self, batch: Batch) -> None:
        self._under_way.discard(batch.item_run)

    async def _arrived(self, batch: Batch | None = None, until: float = float("inf")) -> bool:
        while not self._waiting and not self._ended:
            is_due = self._next in self._ends or (not self._under_way and self._is_stuck())
            if batch is not None and batch.members and is_due:
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
        """Take the first of the queue into `batch`; False, and leave it, if it has to wait."""
        item_run, inputs = next(iter(self._waiting.items()))
        try:
            if not batch.add(item_run, inputs):
                return False
        except Exception as error:  # any error is the item's own
            self._take_back(item_run)
            item_run.finish(error=error)
        self._pop()
        return True

    def _take_back(self, item_run: ItemRun) -> None:
        self._spares.take_back(self._rooms.pop(item_run, {}).values())

    def _pop(self) -> tuple[ItemRun, Mapping[str, Any]]:
        item_run = next(iter(self._waiting))
        self._next = item_run.index + 1
        return item_run, self._waiting.pop(item_run)

    async def _start_at_once(self, item_run: ItemRun, inputs: Mapping[str, Any]) -> bool:
        self._admitting = item_run
        self._under_way.add(item_run)
        is_started = False
        try:
            options = self._options
            is_started = await self._runtime.admit_at_once(
                inputs, options.slots, item_run, options.names, may_run_here=self.runs_here
            )
        except Exception as error:
            item_run.finish(error=error)
            return True
        finally:
            self._admitting = None
            if not is_started:
                self._under_way.discard(item_run)
        if is_started and item_run.was_given_up():  # meanwhile
            item_run.cancel()
        return is_started

    async def _admit(self, item_run: ItemRun, inputs: Mapping[str, Any] | Batch) -> None:
        self._admitting = item_run
        self._under_way.add(item_run)
        try:
            if item_run.was_given_up() or item_run.is_deserted:
                item_run.finish()
            elif self.deadlines is None:
                await self._start(item_run, inputs)
            else:
                with trio.CancelScope() as self._admission:
                    await self._start(item_run, inputs)
                if self._admission.cancelled_caught:
                    item_run.finish()
        except BaseException as error:
            item_run.finish(error=error)
            if not isinstance(error, Exception):  # a cancellation, not a failure of the item
                raise
        finally:
            self._admitting = None
        if item_run.was_given_up():  # at the last moment
            item_run.cancel()

    async def _pause(self, item_run: ItemRun) -> None:
        """Wait for a change of a lost device if `item_run` has just failed for it.

        Further items would fail as well.
        """
        if isinstance(item_run.error, DeviceLostError):
            await self._runtime.await_recovery()

    async def _start(self, item_run: ItemRun, inputs: Mapping[str, Any] | Batch) -> None:
        members = [*inputs.members] if isinstance(inputs, Batch) else []
        try:
            if isinstance(inputs, Batch):
                inputs = await self._runtime.copying(inputs.arrays(), inputs.stacked)
            await self._runtime.admit(inputs, self._options.slots, item_run, self._options.names)
        finally:  # not before: inputs that are not stacked are those of a member
            for member in members:
                self._take_back(member)

    def _give_up(self, item_run: ItemRun, cause: BaseException) -> None:
        item_run.cause = cause
        if self._waiting.pop(item_run, None) is not None:
            self._take_back(item_run)
            item_run.finish()
        elif (shared := item_run.batch) is None:
            self._abandon(item_run)
        else:
            item_run.finish()  # the others of the batch go on
            if shared.is_deserted and shared in self._under_way:  # no other item joins it any more
                shared.cause = cause
                self._abandon(shared)

    def _abandon(self, item_run: ItemRun) -> None:
        if item_run is self._admitting:
            self._admission.cancel()
        else:
            item_run.cancel()

    def _done(self, item_run: ItemRun) -> None:
        self._under_way.discard(item_run)
        self._take_back(item_run)
        self._runtime.announce(item_run.marks, item_run.error)
        self._on_done(item_run)
        self.look_again()
