"""One item going through the steps of an open plan.

Readiness is counted per item, by the thread that completes a step: a lane's thread offers the
dependents to their lanes itself, without a trip through the trio loop, and gives its lane the next
step, whichever item that belongs to. A step that needs a copy of a region which an earlier item
still has, or that follows the order of items, is offered by the thread that releases it. The loop
hears of an item once, at its end.

Why not on the loop: a step that ends on a lane would wait for the loop twice, once to be counted
and once for the next step to be submitted. Each is a hand-over between threads, of 10 to 100 µs,
and the loop may be held up by other tasks. The price is that all counts are under a lock of the
item, and that no code here may await.

Why a count of obligations: a slot may be used again only when no device works on it. Steps that
were launched end by themselves, also after a failure or a cancellation; steps that are only ready
are withdrawn. So the item ends when its last launched step has ended, and there is one such moment
on all paths: the thread that takes the count to 0 calls `on_finish`.

Short steps run on the thread that made them ready (`dispatch.inline_policy`), at most `MOST_INLINE`
in a row and never nested: the trampoline turns calls of calls into a loop, since a chain of a
thousand short nodes would exceed the interpreter's stack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ....devices.event import Event
from ....devices.operator_instances import OperatorInstances
from ...dispatch.inline_policy import SLOW_NS
from ...dispatch.preemption import REFRESH_NS, meter
from ...dispatch.ready import ItemProgress
from ...plans.placement import Outline
from .open_plan import OpenPlan
from .region_guard import OrderGuard, RegionGuard
from .slot import Slot
from .stage_bindings import ItemStages
from .trampoline import Trampoline
from .versions import StateVersions

MOST_INLINE = 8
"""Limit of consecutive short steps that a thread runs for another lane or the loop."""

_this_thread = Trampoline()


class Execution:
    """The steps of one item on one slot.

    `on_finish` is called exactly once, on any thread, when every step is complete or, after a
    failure or `cancel`, when the last of the submitted ones has ended: the slot is free then.
    `number` is the item's for the plan's guard, where it has one. Items of lower `age` go first
    where they meet on a lane; by default, those made first. `stages` are the item's, where it
    computes lengths on its way; `ticket` is its number in the order of items, None where it has its
    turn already. `versions` are those of variables that items hand on as they run, `instances`
    those of the item's key.

    `error` is that of the first failing step. `times` has three for each step, on the clock of its
    device: when it had all it waits for (though maybe not its lane yet), when it began, and when it
    ended; 0 before it happens. `events` has each step's event or None.
    """

    __slots__ = (
        "_age",
        "_bound",
        "_complete",
        "_guard",
        "_instances",
        "_lock",
        "_number",
        "_obligations",
        "_on_finish",
        "_open_plan",
        "_order",
        "_progress",
        "_slot",
        "_stages",
        "_stopped",
        "_ticket",
        "_unread",
        "_versions",
        "error",
        "events",
        "times",
    )

    def __init__(
        self,
        open_plan: OpenPlan,
        slot: Slot,
        on_finish: Callable[[], None],
        number: int = 0,
        age: int | None = None,
        stages: ItemStages | None = None,
        ticket: int | None = None,
        versions: StateVersions | None = None,
        instances: OperatorInstances | None = None,
    ) -> None:
        self._open_plan = open_plan
        self._order = None if ticket is None else open_plan.lanes.order
        self._ticket = -1 if ticket is None else ticket
        self._versions = versions
        self._instances = instances
        self._unread = {*slot.state_in}
        self._guard = open_plan.guard
        self._stages = stages
        self._bound = stages or slot
        self._slot = slot
        self._number = number
        self._age = open_plan.lanes.next_age() if age is None else age
        self._on_finish = on_finish
        self._lock = threading.Lock()
        order = open_plan.order
        self._progress = ItemProgress(order.counts, order.after)
        # Steps that were ready and have not ended or been given up, and threads that offer some.
        self._obligations = 1 + len(order.first)
        self._complete = 0
        self._stopped = False
        self.error: BaseException | None = None
        self.times = open_plan.no_times[:]
        self.events: list[Event | None] = [None] * len(order.counts)

    @property
    def is_complete(self) -> bool:
        """True when every step has ended well."""
        return self._complete == len(self.events)

    @property
    def ready_ns(self) -> Sequence[int]:
        """When each step had all it waits for; 0 if it never had."""
        return self.times[::3]

    def start(self) -> None:
        """Start every step that waits for nothing."""
        self._begin(list(self._open_plan.order.first))

    def abandon(self) -> None:
        """Cancel all steps after an exception of plait's own, when no count can be relied on."""
        self._stopped = True
        for event in self.events:
            if event is not None:
                event.cancel()

    def cancel(self) -> None:
        """Start no more steps and skip waiting ones; running ones end."""
        with self._lock:
            self._stopped = True
        for event in self.events:
            if event is not None:
                event.cancel()
        try:
            self._withdraw()
        except BaseException as error:  # as in _ended
            self._open_plan.report(error)

    def pending(self) -> Iterator[tuple[Outline, bool]]:
        """Yield each step that is ready and has not ended, and whether its lane has it.

        For reports: other threads may be changing that.
        """
        for step, ready_ns, event in zip(
            self._open_plan.outlines, self.ready_ns, self.events, strict=True
        ):
            if ready_ns and (event is None or not event.done):
                yield step, event is not None

    def _offer(self, ready: list[int]) -> None:
        """Offer the steps in `ready` to their lanes, and all that may queue after them.

        Others are given to the lane by the thread that makes room there.
        """
        plan, guard, inline = self._open_plan, self._guard, self._bound.inline
        ordered = () if self._order is None else plan.ordered.claims
        for step in ready:  # grows on the way
            claims = guard is not None and step in guard.claiming
            if claims and not self._may_start(guard, self._number, step):
                continue
            if step in ordered and not self._may_start(self._order, self._ticket, step):
                continue
            if step in plan.state:
                self._read_state(plan.state[step].reads)
            if step in self._slot.instances:  # no other item uses them now
                self._slot.instances[step].own = self._instances
            self.times[3 * step] = plan.now_ns[step]()
            if plan.lane[step].offer(self._age, plan.order.rank[step], (self, step)):
                if inline[step] is not None and plan.estimates.is_quick(step):
                    _this_thread.later.append(partial(self._run_inline, step))
                else:
                    ready += self._launch(step)
            elif self._stopped:  # the stopping thread may not have seen this step wait
                self._withdraw()

    def _launch(self, step: int) -> Sequence[int]:
        """Give `step` to its lane; return the further steps that are ready with that."""
        plan = self._open_plan
        try:
            ahead = plan.order.ahead[step]
            waits = self._waits(ahead) if ahead else ()
            event = self._bound.launches[step](waits, partial(self._ended, step))
        except BaseException as error:  # a lane must survive, and the item must end
            self._ended(step, _fail_event(error))
            return ()
        self.events[step] = event
        behind = plan.order.behind[step]
        if self._stopped:
            event.cancel()
        elif behind:
            with self._lock:
                newly = self._progress.count_down(behind)
                self._obligations += len(newly)
            return newly
        return ()

    def _run_inline(self, step: int) -> None:
        """Run `step`, which is quick, on this thread.

        Its lane gets it if this thread has run enough for others, or the step declines.
        """
        run = self._bound.inline[step]
        assert run is not None
        if _this_thread.n_later <= MOST_INLINE:
            event = self.events[step] = Event(partial(self._ended, step))
            if self._stopped:
                event.cancel()
            try:
                if run(event):
                    return
            except BaseException as error:  # as in _launch
                self._ended(step, _fail_event(error))
                return
        self._follow(step)

    def _follow(self, step: int) -> None:
        with self._lock:
            self._obligations += 1  # the item must not end before the step's event is known
        self._offer([*self._launch(step)])
        self._release()

    def _waits(self, steps: Sequence[int]) -> list[Event]:
        return [event for step in steps if (event := self.events[step]) is not None]

    def _ended(self, step: int, event: Event) -> None:
        try:
            self._end(step, event)
        except (
            BaseException
        ) as error:  # plait's own: the lane must survive, and callers learn of it
            self._open_plan.report(error)

    def _end(self, step: int, event: Event) -> None:
        started, ended = event.started_ns, event.ended_ns
        self.times[3 * step + 1] = started
        self.times[3 * step + 2] = ended
        error = event.error
        if self._stages is not None and error is None and step in self._stages.computes:
            error = _lengths_error(self._stages, step)
        with self._lock:
            if error is not None:
                self.error = self.error or error
                self._stopped = True
            else:
                self._complete += 1
            ready = [] if self._stopped else self._progress.complete(step)
            self._obligations += len(ready)
        if error is not None:
            for call in self._open_plan.calls:  # their results are not needed
                if (pending := self.events[call]) is not None:
                    pending.cancel()
        if self._bound.inline[step] is not None or self._slot.calls is not None:
            spent_ns = ended - started
            if event.error is None or spent_ns > SLOW_NS:  # others may have been cut short
                self._open_plan.estimates.note(step, spent_ns)
            if ended - meter.read_at_ns > REFRESH_NS:
                meter.refresh()
        if ready:
            self._offer(ready)
        if self._guard is not None and event.error is None and step in self._guard.releasing:
            self._guard.complete(self._number, step)  # later items go on there
        if self._order is not None and error is None and step in self._open_plan.ordered.claims:
            self._hand_on(step)
        if self._stopped:
            self._withdraw()
        following = self._open_plan.lane[step].take()
        if following is not None:
            execution, its_step = following
            _this_thread.first.append(partial(execution._follow, its_step))
        _this_thread.run()
        self._release()

    def _read_state(self, variables: Sequence[str]) -> None:
        with self._lock:  # another step may be about to read the same one
            if not self._slot.own.keys().isdisjoint(variables):
                assert self._versions is not None
                self._versions.undo.item = self._ticket
            for name in self._unread.intersection(variables):
                assert self._versions is not None
                self._versions.read(name, self._ticket, self._slot.state_in[name])
                self._unread.discard(name)

    def _hand_on(self, step: int) -> None:
        assert self._order is not None
        state = self._open_plan.state.get(step)
        if state is not None and not self._stopped:
            for name in self._slot.state_out.keys() & state.writes:
                assert self._versions is not None
                self._versions.write(name, self._ticket, self._slot.state_out[name])
        self._order.complete(self._ticket, step)

    def _release(self) -> None:
        with self._lock:
            self._obligations -= 1
            finished = self._obligations == 0
        if finished:
            self._on_finish()

    def _may_start(self, guard: RegionGuard | OrderGuard | None, number: int, step: int) -> bool:
        """Claim `guard` for `step` in item `number`; return False if it is resumed later."""
        assert guard is not None
        if guard.claim(number, step, partial(self._resume, step)):
            return True
        if self._stopped:  # the stopping thread may not have seen this step wait
            self._withdraw()
        return False

    def _resume(self, step: int) -> None:
        with self._lock:
            self._obligations += 1
        self._begin([step])

    def _begin(self, steps: list[int]) -> None:
        """Start `steps`; this thread's own obligation is over with that."""
        try:
            self._offer(steps)
            _this_thread.run()
            self._release()
        except BaseException as error:  # as in _ended
            self._open_plan.report(error)

    def _withdraw(self) -> None:
        waiting = sum(lane.withdraw(self._age) for lane in self._open_plan.used_lanes)
        if self._guard is not None:
            waiting += self._guard.withdraw(self._number)
        if self._order is not None:
            waiting += self._order.withdraw(self._ticket)
        for _ in range(waiting):
            self._release()


def _lengths_error(stages: ItemStages, step: int) -> BaseException | None:
    try:
        stages.take_lengths(step)
    except BaseException as error:  # a lane must survive, and the item must end
        return error
    return None


def _fail_event(error: BaseException) -> Event:
    event = Event()
    event.complete(error)
    return event
