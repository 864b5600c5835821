"""The start of an item: it gets a slot, its inputs are written there, its first steps begin.

Where devices may die, this happens again: a plan may be lost before an item has got a slot of it,
or when it is under way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from ....devices.errors import DeviceLostError
from ....graph.values.tensor import Array
from ...errors import session_closed_error
from ..dispatcher import Dispatcher
from ..events import Announcer
from ..faults.recovery import Recovery
from ..faults.watch import Watch
from ..items.item import ItemRun, ItemsUnderWay
from ..items.pipeline import KeyState
from ..large_copies import copy_side_by_side
from ..opened.copying import Feeds, are_small
from ..opened.executor import Execution
from ..opened.open_plans import OpenPlans
from ..opened.slot import Slot
from ..opened.slots import Slots, Turn
from ..opened.stage_bindings import ItemStages
from ..row_feed import abandon_rows
from ..variables.variables import Variables, check_keyed
from ..virtual_time import VirtualTimeDriver
from .completion import ItemCompletion, may_commit
from .replays import Attempt, Replays

T = TypeVar("T")


class ItemLauncher:
    """Starts items; used on the trio thread only.

    Started items are added to `item_runs`, and wait for their turn with `variables`. `replays` has
    those that may have to start again.
    """

    def __init__(
        self,
        driver: VirtualTimeDriver,
        open_plans: OpenPlans,
        recovery: Recovery,
        completion: ItemCompletion,
        item_runs: ItemsUnderWay,
        announcer: Announcer,
        dispatcher: Dispatcher,
        variables: Variables,
        watch: Watch,
    ) -> None:
        self._driver = driver
        self._open_plans = open_plans
        self._recovery = recovery
        self._completion = completion
        self._item_runs = item_runs
        self._dispatcher = dispatcher
        self._variables = variables
        self.replays = Replays(
            recovery, announcer, self._start_again, self._fail, open_plans.replace
        )
        self._watch = watch
        self._closing = False

    def refuse(self) -> None:
        self._closing = True

    async def start(
        self,
        item_run: ItemRun,
        slots: Slots,
        arrays: Mapping[str, Array],
        attempt: Attempt | None = None,
    ) -> None:
        """Start `item_run` with `arrays` once one of `slots` is free, or run it again as `attempt`.

        Raises DeviceError or SessionError if it cannot start; it holds no slot then.
        """
        hands_on, has_key = slots.open_plan.hands_on, item_run.marks.key is not None
        if has_key:
            check_keyed(slots.open_plan)
        if hands_on or has_key:
            group = slots.open_plan.group_by_key if has_key else hands_on
            await self._variables.join(item_run, group)
        try:
            turn = self.turn_nowait(
                slots, is_part=item_run.is_part, has_joined=True, state=item_run.state
            )
            if turn is None:
                slots, turn = await self._turn(item_run, slots, again=attempt is not None)
        except BaseException:
            self._variables.leave(item_run)
            raise
        await self.begin(item_run, slots, turn, arrays, attempt)

    def turn_nowait(
        self,
        slots: Slots | None,
        *,
        is_part: bool = False,
        has_joined: bool = False,
        state: KeyState | None = None,
    ) -> Turn | None:
        """Return a turn on `slots` for an item, or a part if `is_part`; None if it has to wait.

        Those that hand variables on must have joined (`has_joined`); others follow those of the
        same `state`. Raises SessionError if the session is being closed.
        """
        if slots is None or slots.are_lost or self.replays.is_busy:
            return None
        if slots.open_plan.hands_on and not has_joined:
            return None
        return slots.acquire_nowait(is_part=is_part, state=state)

    async def begin(
        self,
        item_run: ItemRun,
        slots: Slots,
        turn: Turn,
        arrays: Mapping[str, Array],
        attempt: Attempt | None = None,
    ) -> None:
        """Start `item_run` with `arrays` in its `turn` on `slots`, or run it again as `attempt`.

        Raises DeviceError or SessionError if it cannot start; it holds no slot then.
        """
        open_plan, feeds, marks = slots.open_plan, turn.slot.feeds, item_run.marks
        stages: ItemStages | None = None
        marks.admitted_ns = self._driver.now_ns()
        if turn.bound_ns is not None:
            marks.prepare("binding", *turn.bound_ns)
        try:
            if slots.stages is not None:
                index = turn.number % open_plan.period
                stages = slots.stages.of_item(turn.slot, index, marks)
                feeds = stages.feeds_of(arrays)
            if self.replays.guards(slots):
                attempt = attempt or self.replays.keep(slots, arrays, owned=item_run.owns_inputs)
            await self._write(item_run, feeds, arrays, attempt)
            if attempt is not None:
                # Be prepared for the loss of a device that it runs on.
                self.replays.begin(item_run, slots, attempt, turn.ticket)
                item_run.on_cancel = partial(self._given_up, item_run, slots)
                if open_plan.reads or turn.slot.arrivals:  # other tasks may run before the steps
                    attempt.copy_inputs()
            if open_plan.reads:
                turn = await self._variables.enter(item_run, open_plan, turn)
            index = turn.number % open_plan.period
            state = item_run.state
            slot = open_plan.slot_for(turn.slot, index, None if state is None else state.versions)
            if slot.arrivals:
                slot = await self.copying(arrays.values(), partial(slot.handed, arrays))
            if slot.departures:
                slot, item_run.departed = slot.left(copy=not item_run.holds)
            marks.fed_ns = self._driver.now_ns()
            if self._closing or item_run.done.is_set():  # it was given up meanwhile
                raise session_closed_error()
            if attempt is not None and self.replays.postpone(item_run, attempt):
                self._item_runs.add(item_run)
                if not open_plan.hands_on:
                    self._variables.leave(item_run)
                slots.release(turn)
                return
        except BaseException:
            self.replays.abandon(item_run)
            self._variables.leave(item_run)
            slots.release(turn)
            raise
        self._start(item_run, slots, turn, slot, stages)
        # Devices work meanwhile. Nothing is copied where the item has ended on this thread; where
        # it is to be started again, that happens in a later turn of the loop.
        if attempt is not None:
            attempt.copy_inputs()

    def _start(
        self, item_run: ItemRun, slots: Slots, turn: Turn, slot: Slot, stages: ItemStages | None
    ) -> None:
        open_plan = slots.open_plan
        item_run.outcome = None  # it may have been started before
        ended = partial(self._over, item_run, slots, turn, stages)
        # A restarted item keeps its age, and so its turn at the lanes.
        if item_run.age is None:
            item_run.age = open_plan.lanes.next_age(item_run.priority)
        numbers, state = (turn.number, item_run.age), item_run.state
        versions = None
        if open_plan.hands_on:
            assert turn.ticket is not None
            versions = self._variables.get_versions(state)
            pipeline = self._variables.get_pipeline(state, open_plan)
            pipeline.start(turn.ticket, item_run, versions)
        instances = None if state is None else state.instances
        execution = Execution(
            open_plan, slot, ended, *numbers, stages, turn.ticket, versions, instances
        )
        item_run.execution = execution
        self._item_runs.add(item_run)
        execution.start()
        self._dispatcher.start(item_run, open_plan)
        self._driver.wake()

    async def copying(self, arrays: Iterable[Array], copy: Callable[[], T]) -> T:
        """Return the result of `copy`, which copies `arrays`, on a thread if they are large."""
        return copy() if are_small(arrays) else await self._copy_aside(copy)

    async def _copy_aside(self, copy: Callable[[], T]) -> T:
        self._item_runs.copying += 1
        try:
            return await self._driver.on_thread(copy)
        finally:
            self._item_runs.copying -= 1

    async def _turn(self, item_run: ItemRun, slots: Slots, *, again: bool) -> tuple[Slots, Turn]:
        """Wait for the turn of `item_run`; return it with `slots`, or others if these were lost.

        A restart (`again`) does not wait for other restarts.
        """
        deaths = 0
        while True:
            try:
                if slots.are_lost:
                    if not again:
                        await self.replays.settle()
                    slots = await self._redirected(item_run, slots)
                turn = await slots.acquire(is_part=item_run.is_part, state=item_run.state)
            except DeviceLostError:
                deaths += 1
                self._recovery.examine()
                if not slots.are_lost or deaths > self._recovery.policy.replays:
                    raise
            else:
                if not slots.are_lost:
                    return slots, turn
                slots.release(turn)

    async def _write(
        self, item_run: ItemRun, feeds: Feeds, arrays: Mapping[str, Array], attempt: Attempt | None
    ) -> None:
        """Copy `arrays` of `item_run` to `feeds` in its slot, and to where `attempt` reads them.

        The caller may write to the arrays again, but another attempt needs the inputs. That is
        still to be copied where no other task has run; the item's first steps go first then.
        """
        write = partial(feeds.write, arrays)
        if feeds.nbytes <= self._item_runs.most_inline(item_run):
            write()
        elif attempt is None or not attempt.room:
            await self._copy_aside(write)
        else:
            await self._copy_aside(partial(copy_side_by_side, write, attempt.copy_inputs))

    def _given_up(self, item_run: ItemRun, slots: Slots) -> None:
        self.replays.cancel(item_run)
        if item_run.execution is not None:
            events = item_run.execution.events
            self._watch.over(item_run.done, slots.open_plan.plan.steps, events)

    def _over(self, item_run: ItemRun, slots: Slots, turn: Turn, stages: ItemStages | None) -> None:
        if stages is not None:
            turn = turn._replace(slot=replace(turn.slot, results=stages.results))
        self._completion.take(item_run, turn.slot)
        self._driver.call(partial(self._land, item_run, slots, turn, stages))

    def _land(self, item_run: ItemRun, slots: Slots, turn: Turn, stages: ItemStages | None) -> None:
        if stages is not None:
            self._open_plans.count(was_bound=stages.was_bound)
        if turn.slot.row_feeds:
            assert item_run.execution is not None
            abandon_rows(turn.slot.row_feeds, item_run.execution.events)
        if item_run.execution is not None and item_run.execution.is_complete:
            self._dispatcher.end(slots.open_plan, item_run.execution.times)
        if not slots.open_plan.hands_on:
            self._settle(item_run, slots, turn)
        elif self._may_commit(item_run) and item_run.outcome is None:
            self._driver.spawn(self._take_and_land, item_run, slots, turn)
        else:
            self._land_in_order(item_run, slots, turn)

    async def _take_and_land(self, item_run: ItemRun, slots: Slots, turn: Turn) -> None:
        await self._completion.take_large(item_run, turn.slot)
        self._land_in_order(item_run, slots, turn)

    def _land_in_order(self, item_run: ItemRun, slots: Slots, turn: Turn) -> None:
        """End `item_run` in its `turn` on `slots`, after earlier ones: it may read their values."""
        assert turn.ticket is not None
        settle = partial(self._settle, item_run, slots, turn)
        pipeline = self._variables.get_pipeline(item_run.state, slots.open_plan)
        pipeline.land(turn.ticket, settle, self._may_commit, self.replays.recall)

    def _may_commit(self, item_run: ItemRun) -> bool:
        execution = item_run.execution
        if execution is None or not execution.is_complete or self.replays.is_recalled(item_run):
            return False
        return may_commit(item_run, None if item_run.outcome is None else item_run.outcome[1])

    def _settle(self, item_run: ItemRun, slots: Slots, turn: Turn) -> None:
        if self.replays.take(item_run):
            # Items that assign keep their turn: they are started again.
            if not (slots.open_plan.keeps or slots.open_plan.hands_on):
                self._variables.leave(item_run)
            slots.release(turn)
        else:
            self._completion.land(item_run, slots, turn)

    async def _redirected(self, item_run: ItemRun, slots: Slots) -> Slots:
        item_run.variant = self._dispatcher.move(item_run)
        return await self._open_plans.again(slots, item_run.variant)

    @trio.lowlevel.enable_ki_protection
    async def _start_again(self, item_run: ItemRun, attempt: Attempt) -> None:
        slots = await self._redirected(item_run, attempt.slots)
        await self.start(item_run, slots, attempt.inputs, attempt)

    def _fail(self, item_run: ItemRun, error: BaseException) -> None:
        if not item_run.is_part:
            self._completion.record(item_run, item_run.cause or error)
        self._variables.leave(item_run)
        self._item_runs.discard(item_run)
        item_run.finish(error=error)
