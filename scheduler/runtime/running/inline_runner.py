"""Items that run wholly on the thread that asks for them, or on a thread of a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ....devices.errors import UnsupportedNodeError
from ....devices.lane import LaneCall
from ....graph.operators.each import RowServer, row_server
from ....graph.values.tensor import Array
from ...dispatch.inline_policy import ON_LOOP, Estimates, InlineLimit
from ...profile.timestamps import Timestamps
from ..faults.recovery import Recovery
from ..items.pipeline import KeyState
from ..opened.copying import Feeds
from ..opened.fetch_plan_cache import ALL
from ..opened.inline import Call, OrderedTurn, Park, run_steps
from ..opened.one_off import OneOffLengths
from ..opened.open_plan import OpenPlan
from ..opened.open_plans import OpenPlans
from ..opened.results import Results, copy_results
from ..opened.shape_plan_cache import ShapePlanCache
from ..opened.slot import Slot
from ..opened.slots import Slots
from ..opened.stage_bindings import ItemStages, StageBindings
from ..recorder import Recorder
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver
from .inline_rows import InlineRows, ItemRows


class StreamThread(NamedTuple):
    """The part of a thread in running the items of a stream."""

    variant: int
    """Each thread has its own."""
    begin: Callable[[], object]
    """Called when an item has its place in the order of items: the next one may be admitted."""
    park: Park | None = None
    """Called with the item when it may go on, if it can wait for an earlier one while parked."""


class InlineTerms(NamedTuple):
    """How items may run on the thread that asks for them."""

    names: frozenset[str] = ALL
    """The fetched tensors."""
    limit: InlineLimit = ON_LOOP
    slots: int = 1
    thread: StreamThread | None = None
    """That of the caller, if others may run items at the same time."""
    shape_plans: ShapePlanCache | None = None
    """Plans that are used instead of those for `names`."""
    check: Callable[[], object] | None = None
    """Called before each step and at the end; an error that it raises ends the item."""


@dataclass(slots=True, eq=False)
class InlineRunner:
    """Runs an item while lanes rest and the loop has nothing to do with the session.

    `estimates` are those of the plan of the last item that ran here, or could have.
    """

    _open_plans: OpenPlans
    _variables: Variables
    _recorder: Recorder
    _recovery: Recovery
    _driver: VirtualTimeDriver
    _rows: Mapping[str, InlineRows]
    _lock: threading.Lock
    estimates: Estimates | None = None

    def run(
        self,
        shape_plans: ShapePlanCache,
        inputs: Mapping[str, Any],
        marks: Timestamps,
        terms: InlineTerms,
    ) -> Results | None:
        """Run `inputs` on `shape_plans` on this thread if likely to be brief, or return None.

        `terms` set the limit, and `marks` get the times. An item that has to wait for an earlier
        one is parked where its thread allows that. Raises FeedError, KernelError, DeviceError or
        SessionError if the item cannot start, or fails.
        """
        _, limit, max_in_flight, thread, _, check = terms
        if thread is None and shape_plans.not_brief and self._is_long(shape_plans, limit):
            return None  # to look it up would be in vain
        arrays, count = shape_plans.check(inputs), shape_plans.count(max_in_flight)
        variant = 0 if thread is None else thread.variant
        with self._lock:
            slots, arrays = shape_plans.peek(count, arrays, variant)
            if slots is None:
                slots = shape_plans.one_off(count, arrays, variant)
        has_key = marks.key is not None
        if slots is None or (slot := slots.resting) is None:
            return None
        open_plan, state = slots.open_plan, None
        is_one_off = isinstance(slots.stages, OneOffLengths)
        is_plain = open_plan.is_plain and thread is None and not is_one_off and slot.calls
        if (has_key or not is_plain) and not self._may_run(
            shape_plans, slots, slot, thread, has_key=has_key
        ):
            return None
        self.estimates = estimates = open_plan.estimates
        lanes = open_plan.most_at_once
        longest_ns = limit.most_ns(lanes, shape_plans.variants) - slot.copy_ns
        if not estimates.are_brief(longest_ns, may_wait=thread is not None):
            is_one = thread is None and shape_plans.plan.is_static
            shape_plans.not_brief = (estimates, lanes) if is_one else None
            return None
        if has_key and (state := self._variables.states.find_nowait(marks.key)) is None:
            return None
        # A device of this session alone is idle when the session is.
        given = open_plan.given
        held = None if given is None else given.hold()
        if given is not None and held is None:  # it works for another session
            return None
        has_order = thread is not None and open_plan.ordered.claims
        turn = _take_turn(slots, thread) if has_order else None
        if thread is not None:
            thread.begin()
        try:
            steps = self._run_calls(slots, slot, arrays, marks, turn, state, variant, check)
            next(steps)
        except StopIteration as end:
            results: Results = end.value
            return results
        except UnsupportedNodeError as error:
            is_old = self._recovery.note_refusals(open_plan.plan, error, open_plan.refusals)
            if not is_old or open_plan.acts or turn is not None:  # later items may have passed it
                raise
            with self._lock:
                self._open_plans.replace(slots)
            return None  # it starts again, on another plan
        else:
            return _park(steps, turn)
        finally:
            if turn is not None or held is not None:
                _leave(turn, held)

    def _is_long(self, shape_plans: ShapePlanCache, limit: InlineLimit) -> bool:
        if (known := shape_plans.not_brief) is None:  # another thread has just changed it
            return False
        self.estimates, lanes = known
        if self.estimates.are_brief(limit.most_ns(lanes, shape_plans.variants)):
            shape_plans.not_brief = None  # brief items are not asked twice
            return False
        return True

    def _may_run(
        self,
        shape_plans: ShapePlanCache,
        slots: Slots,
        slot: Slot,
        thread: StreamThread | None,
        *,
        has_key: bool,
    ) -> bool:
        """Return whether an item can run in `slot` of `slots` on a stream's `thread`, or the loop.

        The item may have a key (`has_key`). If the answer is the same for later items,
        `shape_plans` remember it.
        """
        open_plan = slots.open_plan
        if thread is not None and not open_plan.has_own_devices:  # of a plan around refused nodes
            return False
        if isinstance(slots.stages, OneOffLengths):
            if not slots.stages.may_run_at_once:
                return False
        elif slot.calls is None:
            is_one = shape_plans.plan.is_static or open_plan.stages is not None
            shape_plans.may_run_at_once = not is_one
            return False
        self.estimates = open_plan.estimates
        if open_plan.eaches and not self._may_run_rows(open_plan, thread):
            return False
        if not (has_key or open_plan.has_state):
            return True
        is_alone = thread is None and slots.stages is None
        return is_alone and self._variables.may_run_here(slot, open_plan, has_key=has_key)

    def _may_run_rows(self, open_plan: OpenPlan, thread: StreamThread | None) -> bool:
        variant = 0 if thread is None else thread.variant
        with self._lock:
            return all(
                (rows := self._rows.get(each.attributes["queue"])) is not None
                and rows.is_ready(each.attributes, variant, shares=thread is not None)
                for each in open_plan.eaches
            )

    def _run_calls(
        self,
        slots: Slots,
        slot: Slot,
        arrays: Mapping[str, Array],
        marks: Timestamps,
        turn: OrderedTurn | None,
        state: KeyState | None,
        variant: int,
        check: Callable[[], object] | None,
    ) -> Generator[None, None, Results]:
        """Run the item's steps and return the results; yield while it is parked."""
        open_plan, own, stages, feeds = slots.open_plan, slot, None, slot.feeds
        if slots.stages is not None:
            slot, stages, feeds = self._bind(slots, slots.stages, slot, arrays, marks)
        calls: Sequence[Call] | None = slot.calls if stages is None else stages.calls
        assert calls is not None
        marks.admitted_ns = self._driver.now_ns()
        if open_plan.hands_on:
            self._variables.read_here(slot, state)
        feeds.take(arrays)
        marks.fed_ns = self._driver.now_ns()
        times, error, held = open_plan.no_times[:], None, -1
        served = None
        if open_plan.eaches:
            served = row_server.set(ItemRows(self._rows, variant))
        for feed in slot.row_feeds:
            feed.rests = True
        try:
            waits = run_steps(calls, open_plan.estimates, times, turn, stages, check)
            while waits is not None:
                served, held = None, self._hold(slots, own, held, served)
                yield
                calls = [*map(_call_apart, calls)]
                waits = run_steps(calls, open_plan.estimates, times, turn, None, check, waits)
            marks.finished_ns = self._driver.now_ns()
            found = slot.results if stages is None else stages.results
            results = slot.take_results(copy_results, found) if slot.gifts else copy_results(found)
            if open_plan.keeps:
                self._variables.commit_now(slot, open_plan)
            elif open_plan.hands_on:
                self._variables.commit_here(slot, state)
            return results
        except BaseException as failure:
            error = failure
            _withdraw(state)
            raise
        finally:
            if feeds.lent:
                feeds.end_loans()
            for feed in slot.row_feeds:
                feed.rests = False
            if served is not None:
                row_server.reset(served)
            marks.landed_ns = self._driver.now_ns()
            trace = open_plan.outlines, times, open_plan.pools
            with self._lock:
                if held >= 0:
                    slots.let_go(held)
                if slot is own and (stages is None or stages.was_bound):
                    self._open_plans.hit()
                else:
                    self._open_plans.count(was_bound=False)
                self._recorder.record((trace,), marks, error is not None)

    def _bind(
        self,
        slots: Slots,
        bindings: StageBindings,
        slot: Slot,
        arrays: Mapping[str, Array],
        marks: Timestamps,
    ) -> tuple[Slot, ItemStages | None, Feeds]:
        if isinstance(bindings, OneOffLengths):
            begin_ns = self._driver.now_ns()
            slot = bindings.shorten(slot, slots.following, arrays)
            marks.prepare("binding", begin_ns, self._driver.now_ns())
            return slot, None, slot.feeds
        stages = bindings.of_item(slot, slots.following, marks)
        return slot, stages, stages.feeds_of(arrays)

    def _hold(self, slots: Slots, slot: Slot, held: int, served: Token[RowServer] | None) -> int:
        """Keep `slot` for an item that is parked, unless it is `held`; return its number."""
        if served is not None:  # rows ran before, in the context of this thread
            row_server.reset(served)
        with self._lock:
            return slots.hold(slot) if held < 0 else held


def _call_apart(call: Call) -> Call:
    return call.apart if isinstance(call, LaneCall) else call


def _park(steps: Generator[None, None, Results], turn: OrderedTurn | None) -> Results:
    """Have the other `steps` of an item run when it is its turn."""
    assert turn is not None
    assert turn.parked is not None
    turn.parked.go_on = partial(_resume, steps, turn)
    return turn.parked


def _resume(steps: Generator[None, None, Results], turn: OrderedTurn) -> Results:
    turn.parked = None
    try:
        next(steps)
    except StopIteration as end:
        results: Results = end.value
        return results
    else:
        return _park(steps, turn)
    finally:
        _leave(turn, None)


def _take_turn(slots: Slots, thread: StreamThread | None) -> OrderedTurn:
    open_plan = slots.open_plan
    may_park = thread is not None and open_plan.given is None and slots.can_hold()
    enqueue = thread.park if thread is not None and may_park else None
    return OrderedTurn(open_plan.lanes.order, open_plan.ordered, enqueue, open_plan.parks_from)


def _leave(turn: OrderedTurn | None, device: threading.Lock | None) -> None:
    if turn is not None and turn.parked is None:
        turn.leave()
    if device is not None:
        device.release()


def _withdraw(state: KeyState | None) -> None:
    if state is not None:
        state.versions.withdraw(0)
