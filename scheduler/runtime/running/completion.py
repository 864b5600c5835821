"""The end of an item: its results are copied out, its slot is free, its times are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import trio

from ....devices.event import CancelledWorkError
from ....graph.values.errors import PlaitError
from ....graph.values.tensor import Array
from ...costs.host import AFTER_LAST_BYTES
from ...errors import session_closed_error
from ..items.item import ItemRun, ItemsUnderWay
from ..opened.device_io import follow_readers
from ..opened.executor import Execution
from ..opened.results import Outcome
from ..opened.slot import Slot
from ..opened.slots import Slots, Turn
from ..recorder import Recorder
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver


@dataclass(slots=True, eq=False)
class ItemCompletion:
    """Ends items; used on the trio thread only, but for `take`.

    Items that end are taken out of `item_runs`; `variables` get the assignments of successful ones.
    """

    _recorder: Recorder
    _driver: VirtualTimeDriver
    _item_runs: ItemsUnderWay
    _variables: Variables

    def take(self, item_run: ItemRun, slot: Slot) -> None:
        """Copy results of `item_run` out of `slot` where its last step ended, if that is brief.

        They lie in that thread's caches, and the loop has one turn for the item, not three. Not
        when a consumer asks for them: a slow consumer would keep slots from other callers.
        """
        assert item_run.execution is not None
        item_run.marks.finished_ns = self._driver.now_ns()
        if not item_run.execution.is_complete:
            return
        most = self._item_runs.most_inline(item_run)
        if not trio.lowlevel.in_trio_run():
            most = max(most, AFTER_LAST_BYTES)
        if item_run.holds or slot.copied_bytes <= most:
            item_run.outcome = _take_results(item_run, slot)

    def land(self, item_run: ItemRun, slots: Slots, turn: Turn) -> None:
        """End `item_run`, which is finished, and give its `turn` back to `slots`.

        Results that `take` has not copied, and large variables, are copied in the background first.
        """
        execution, open_plan = item_run.execution, slots.open_plan
        assert execution is not None
        item_run.traces = (self._recorder.trace(open_plan, execution),)
        if not execution.is_complete:
            self._finish(item_run, slots, turn, {}, _find_reason(execution))
        elif item_run.outcome is None or (
            open_plan.keeps and not self._variables.is_quick(turn.slot)
        ):
            self._driver.spawn(self._land_large, item_run, slots, turn)
        else:
            results, error = item_run.outcome
            if open_plan.keeps and may_commit(item_run, error):
                self._variables.commit_now(turn.slot, open_plan)
            self._finish(item_run, slots, turn, results, error)

    async def take_large(self, item_run: ItemRun, slot: Slot) -> None:
        item_run.outcome = await self._driver.on_thread(partial(_take_results, item_run, slot))

    def record(self, item_run: ItemRun, error: BaseException | None) -> None:
        item_run.marks.landed_ns = self._driver.now_ns()
        self._recorder.record(item_run.traces, item_run.marks, error is not None)

    async def _land_large(self, item_run: ItemRun, slots: Slots, turn: Turn) -> None:
        outcome = item_run.outcome
        if outcome is None:
            outcome = await self._driver.on_thread(partial(_take_results, item_run, turn.slot))
        results, error = outcome
        if slots.open_plan.keeps and may_commit(item_run, error):
            try:
                await self._variables.commit(turn.slot, slots.open_plan)
                item_run.cause = None  # it is done, even if cancelled meanwhile
            except PlaitError as failure:
                results, error = {}, failure
        self._finish(item_run, slots, turn, results, error)

    def _finish(
        self,
        item_run: ItemRun,
        slots: Slots,
        turn: Turn,
        results: Mapping[str, Array],
        error: BaseException | None,
    ) -> None:
        if not item_run.is_part:
            self.record(item_run, item_run.cause or error)
        self._item_runs.discard(item_run)
        if slots.open_plan.reads or slots.open_plan.hands_on or item_run.state is not None:
            self._variables.leave(item_run)
        item_run.land(results, error, partial(_release, item_run, slots, turn))


def may_commit(item_run: ItemRun, error: BaseException | None) -> bool:
    """Return whether `item_run` has ended without `error` and was not given up before."""
    return error is None and item_run.cause is None and not item_run.cancelled


def _release(item_run: ItemRun, slots: Slots, turn: Turn) -> None:
    """Give the `turn` of `item_run` back to `slots`; devices wait for readers of its memory."""
    if item_run.holds and turn.slot.departures:
        follow_readers(turn.slot.departures)
    slots.release(turn)


def _take_results(item_run: ItemRun, slot: Slot) -> Outcome:
    try:
        taken = slot.take_results(item_run.take)
        return {**taken, **item_run.departed} if item_run.departed else taken, None
    except (MemoryError, PlaitError) as error:
        return {}, error


def _find_reason(execution: Execution) -> BaseException:
    error = execution.error
    if error is None or isinstance(error, CancelledWorkError):
        return session_closed_error()
    return error
