"""The queue of a stream that runs items of different keys in batches.

An item gets the state of its key when it comes, in the order of the source. A batch takes the first
item of each key that has none under way; it reads the committed state of each, and commits the next
ones when it has ended. Items of a batch that fails run again alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import trio

from ....graph.values.tensor import Array
from ...dispatch.batch_queue import NEVER
from ...errors import session_closed_error
from ..items.item import ItemRun
from ..items.pipeline import KeyState
from ..opened.copying import are_small
from .admission import AdmissionQueue
from .batching import Batch, Batching, may_succeed_alone
from .keyed_batch import KeyedBatch, KeyedBatching

IDLE_TURNS = 3
"""Turns of the loop without a further item after which a batch starts that is not full."""


class KeyedQueue(AdmissionQueue):
    """Starts batches of the items that are ready; used on the trio thread only."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self._batching, KeyedBatching)
        self._keyed = batching = self._batching
        self._busy: dict[KeyState, ItemRun] = {}
        self._alone: deque[tuple[ItemRun, Mapping[str, Array]]] = deque()
        self._due_s = self._wake_s = NEVER
        self._is_closing = False
        # Items of other streams, which may have the same keys, take turns with those of this one.
        self._group = frozenset((*batching.lifted.states, f"of {id(self)}"))

    async def drain(self) -> None:
        self._is_closing = True
        await super().drain()
        while self._alone:
            self._alone.popleft()[0].finish(error=session_closed_error())

    async def _enqueue(self, item_run: ItemRun, inputs: Mapping[str, Any]) -> None:
        variables = self._keyed.variables
        try:
            arrays, _ = self._keyed.check(inputs)
            await variables.join(item_run, self._group)
            if item_run.done.is_set() or not are_small(arrays.values()):
                await super()._enqueue(item_run, arrays)
            else:  # to copy takes less time than to find room
                self._waiting[item_run] = {n: array.copy() for n, array in arrays.items()}
                self.look_again()
        except BaseException as error:
            item_run.finish(error=error)
            if not isinstance(error, Exception):
                raise
        if item_run.done.is_set():  # it was given up meanwhile
            variables.leave(item_run)
            self._waiting.pop(item_run, None)
            self._take_back(item_run)

    async def _gather(self, batching: Batching) -> Batch:
        """Return a batch once items are ready, or an empty one if none come; ignores `batching`."""
        batch = KeyedBatch(self._keyed, self._end_batch)
        try:
            await self._wait_while_growing()
            while not self._fill(batch) and (
                not self._ended or self._waiting or self._alone or self._under_way
            ):
                with trio.move_on_at(self._wake_s):
                    await self._arrivals.park()
                await self._wait_while_growing()
        except BaseException as error:
            batch.item_run.finish(error=error)
            raise
        return batch

    async def _wait_while_growing(self) -> None:
        """Let a batch fill up while items come faster than the devices are through with them."""
        count = idle = 0
        while (
            count < self._keyed.size
            and idle < IDLE_TURNS
            and (item_run := next(reversed(self._waiting), None)) is not None
            and item_run.marks.given_ns - item_run.marks.asked_ns < self._keyed.pace.row_ns
            and not self._are_devices_busy
        ):
            await trio.lowlevel.checkpoint()
            idle = idle + 1 if len(self._waiting) <= count else 0
            count = len(self._waiting)

    def look_again(self) -> None:
        if self._arrivals and not self._is_filling:
            self._arrivals.unpark_all()

    def _fill(self, batch: KeyedBatch) -> bool:
        self._wake_s = NEVER
        if len(self._under_way) >= self._options.slots:
            return False
        while self._alone:
            item_run, arrays = self._alone.popleft()
            if not item_run.done.is_set():
                batch.put(item_run, arrays, 1)
                return True
        rows = ((one, one.state, fed) for one, fed in self._waiting.items() if one.state)
        ready = [] if self._is_filling else self._keyed.find_ready(rows, self._busy)
        if not ready or (
            len(ready) < self._keyed.size and (self._are_devices_busy or self._may_wait())
        ):
            return False
        self._due_s = NEVER
        for item_run, state, arrays in ready:
            self._busy[state] = item_run
            del self._waiting[item_run]
            batch.put(item_run, arrays, 1)
        return True

    @property
    def _are_devices_busy(self) -> bool:
        return len(self._under_way) >= self._keyed.shape_plans.variants

    @property
    def _is_filling(self) -> bool:
        return len(self._waiting) < self._keyed.size and self._are_devices_busy

    def _may_wait(self) -> bool:
        now_s = trio.current_time()
        self._due_s = min(self._due_s, now_s + (self._options.max_delay_s or 0))
        if self._ended or now_s >= self._due_s or (self._is_stuck() and not self._under_way):
            return False
        self._wake_s = self._due_s
        return True

    async def _start(self, item_run: ItemRun, inputs: Mapping[str, Any] | Batch) -> None:
        assert isinstance(inputs, Batch)
        arrays = await self._runtime.copying(inputs.arrays(), inputs.stacked)
        slots = self._options.slots
        await self._keyed.starter.admit_on(self._keyed.shape_plans, arrays, slots, item_run)

    def _end_batch(self, batch: Batch) -> None:
        super()._end_batch(batch)
        self._keyed.pace.note(batch.item_run.marks, len(batch.members))
        if len(batch.members) > 1 and may_succeed_alone(batch.item_run.error):
            feeds = dict(zip(batch.members, batch.feeds, strict=True))
            taken = [] if self._is_closing else batch.take_out()
            self._alone.extend((item_run, feeds[item_run]) for item_run in taken)
        self.look_again()

    def _give_up(self, item_run: ItemRun, cause: BaseException) -> None:
        if item_run in self._waiting or item_run.batch is not None:
            super()._give_up(item_run, cause)
        else:  # waiting for its state, or to run alone
            item_run.cause = cause
            item_run.finish()

    def _done(self, item_run: ItemRun) -> None:
        if item_run.state is not None and self._busy.get(item_run.state) is item_run:
            del self._busy[item_run.state]
        self._keyed.variables.leave(item_run)
        super()._done(item_run)
