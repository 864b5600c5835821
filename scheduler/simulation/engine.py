"""Discrete events: what the scheduler would do, on a clock that jumps to the next event.

Which step may start is decided by the scheduler's own code: `ItemProgress`, `RegionRing` and
`ReadyQueue`, where items have a choice of replicas, `Rotation`, and where rows go in batches,
`RowQueue`. How long everything takes is up to `Machine`.
Of events at the same time the one caused first comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil

from ..dispatch.progress import ItemProgress
from ..dispatch.ready import ReadyQueue
from ..dispatch.region_ring import Grant
from ..dispatch.rotation import Rotation
from ..dispatch.row_queue import RowGroup, RowQueue, RowRun
from ..plans.regions import ADMISSION, Region
from .machine import AWAITED, BEGIN, END, SHARED_END, Machine
from .places import SlotPlaces
from .workload import (
    NEVER,
    DispatchOrder,
    RowCall,
    RowWork,
    SimulatedBatch,
    SimulatedHost,
    Timeline,
    Workload,
    ns_of,
)

ALONE = SimulatedHost()

KNOWN, GRANTED, FED, LAND, LANDED, FREE, DUE = range(AWAITED + 1, AWAITED + 8)
"""Events: the scheduler knows of an end; an item may be fed, or is; the loop takes up its results;
they are copied out; the loop may admit the next one; rows wait for no others any more."""

NO_CALLS: Mapping[int, RowCall] = {}
NO_ROWS: Mapping[str, RowWork] = {}

assert (END, SHARED_END, BEGIN, AWAITED, KNOWN) == (0, 1, 2, 3, 4), "events have one number each"


def run(
    workload: Workload,
    *,
    items: int = 1,
    max_in_flight: int = 1,
    regions: Sequence[Region] = (),
    host: SimulatedHost = ALONE,
    rows: Mapping[str, RowWork] = NO_ROWS,
) -> Timeline:
    """Return when everything happens to a stream of items, all of which are there at the start.

    Parameters
    ----------
    workload : Workload
    items : int
    max_in_flight : int
        An item is admitted when the one that many before it, and all earlier ones, have landed.
        Variants of the workload have equal shares of these, rounded up.
    regions : sequence of Region
        What steps wait for besides each other; each variant has its own.
    host : SimulatedHost
    rows : Mapping of str to RowWork
        By queue, how the rows run that steps hand over.
    """
    return _Run(workload, items, max_in_flight, regions, host, rows).run()


@dataclass(slots=True, eq=False)
class _StepsOfKind:
    """The steps of items, or of the batches of a queue: what follows what, and their places."""

    order: DispatchOrder
    places: Sequence[SlotPlaces]
    calls: Mapping[int, RowCall]
    after: Sequence[Sequence[int]] = field(init=False)
    behind: Sequence[Sequence[int]] = field(init=False)
    rank: Sequence[int] = field(init=False)
    claiming: frozenset[int] = field(init=False)
    releasing: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        _, self.after, self.behind, _, _, self.rank = self.order
        self.claiming, self.releasing = self.places[0].claiming, self.places[0].releasing


@dataclass(slots=True, eq=False, kw_only=True)
class _HeldRows(RowGroup):
    """Rows that a step waits for."""

    entry: int
    since_ns: int
    left: int


@dataclass(slots=True, eq=False)
class _RowsOfQueue:
    """The rows of a queue: those that wait, and the batches that are under way."""

    name: str
    work: RowWork
    steps: _StepsOfKind
    queue: RowQueue[_HeldRows]
    under_way: dict[int, Sequence[RowRun[_HeldRows]]] = field(default_factory=dict)
    due_ns: int = NEVER
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Batches for which there is no place on their variant yet, and that."""


class _Run:
    def __init__(
        self,
        workload: Workload,
        items: int,
        max_in_flight: int,
        regions: Sequence[Region],
        host: SimulatedHost,
        rows: Mapping[str, RowWork],
    ) -> None:
        self._n = len(workload.duration_s)
        self._items, self._end_of_items = items, items * len(workload.duration_s)
        self._host = host
        self._time = Timeline(self._n, items)
        self._events: list[tuple[int, int, int, int]] = []  # when, order, what, of whom
        self._order = 0
        self._handlers = (
            self._end, self._end_shared, self._begin, self._end_call, self._complete, self._feed,
            self._start_item, self._land, self._deliver, self._go_on, self._look,
        )  # fmt: skip
        order = workload.order()
        self._machine = Machine(workload, order, host, self._time, self._push)
        self._ready = [ReadyQueue[int](lane.depth) for lane in workload.lanes]
        self._progress: dict[int, ItemProgress] = {}
        self._left: dict[int, int] = {}

        variants = len(workload.variants)
        slots = -(-max_in_flight // variants)
        self._places = [SlotPlaces(regions, slots) for _ in range(variants)]
        self._steps = [_StepsOfKind(order, self._places, workload.calls)] * items
        self._ages, self._age = [NEVER] * items, 0
        self._rows = [self._row_queue(name, work, variants) for name, work in rows.items()]
        self._queue_index = {name: index for index, name in enumerate(rows)}
        self._holders: list[tuple[int, Callable[[int, int], None], int]] = []
        self._ticket = 0
        self._tickets: dict[int, int] = {}
        self._batch_rows: dict[int, tuple[_RowsOfQueue, int]] = {}
        self._rotation = Rotation(variants)
        self._permits = max_in_flight
        self._next = self._delivered = 0
        self._is_admitting = False
        self._on_loop = True
        """Whether what happens does so on the loop's thread."""
        self._has_landed = [False] * items

    def run(self) -> Timeline:
        self._admit(0)
        events, holders, now = self._events, self._holders, 0
        while events or holders:
            # First the loop's other business, then holders of tickets, then what devices do.
            if holders and not (events and events[0][:2] < (now, 0)):
                _, handler, whom = heappop(holders)
                handler(whom, now)
            else:
                now, _, what, whom = heappop(events)
                self._handlers[what](whom, now)
        assert self._delivered == self._items, "every item lands"
        return self._time

    def _push(self, time: int, what: int, whom: int) -> None:
        self._order += 1
        heappush(self._events, (time, self._order, what, whom))

    def _push_first(self, time: int, what: int, whom: int) -> None:
        """Let the loop's business happen before all else that is due then."""
        self._order += 1
        heappush(self._events, (time, -1 << 60 | self._order, what, whom))

    def _at(self, time: int, now: int, what: int, whom: int) -> None:
        """Let the loop's business happen at a time: at once, or first of all."""
        if time > now:
            self._push_first(time, what, whom)
        else:
            self._handlers[what](whom, now)

    # Items: admitted in order, landed as they end, delivered in order.

    def _admit(self, now: int) -> None:
        """Admit the next item, if there is a permit for it."""
        if self._is_admitting or not self._permits or self._next == self._items:
            return
        item = self._next
        self._next += 1
        self._permits -= 1
        self._is_admitting = True
        variant = self._choose_variant()
        self._machine.place(item, variant)
        self._give_place(item, variant, now)

    def _choose_variant(self) -> int:
        if len(self._places) == 1:
            return 0
        every = [self._places, *(rows.steps.places for rows in self._rows)]
        return self._rotation.choose(
            [sum(one.under_way for one in together) for together in zip(*every, strict=True)]
        )

    def _give_place(self, item: int, variant: int, now: int) -> None:
        steps = self._steps[item]
        places = steps.places[variant]
        self._time.slot[item] = places.admit(item)
        if ADMISSION not in steps.claiming or places.claim(item, ADMISSION):
            self._feed(item, now)

    def _feed(self, item: int, now: int) -> None:
        self._time.admitted[item], fed = self._machine.occupy_loop(self._host.feed_s, now)
        self._at(fed + ns_of(self._host.feed_delay_s), now, FED, item)

    def _start_item(self, item: int, now: int) -> None:
        order = self._steps[item].order
        self._progress[item] = ItemProgress(order.counts, order.after)
        self._left[item] = len(order.counts)
        self._ages[item] = self._age
        self._age += 1
        self._on_loop = True
        self._submit(item, list(order.first), now, NEVER)
        if not order.counts:
            self._finish(item, now, NEVER)
        if item < self._items:
            self._go_on(item, now)

    def _go_on(self, item: int, now: int) -> None:
        """Admit the next item, once the loop has run the quick steps of this one."""
        if self._machine.may_run_here and self._machine.loop_free > now:
            self._push(self._machine.loop_free, FREE, item)
        else:
            self._is_admitting = False
            self._admit(now)

    def _finish(self, item: int, now: int, last: int) -> None:
        del self._progress[item], self._left[item]
        self._time.finished_by[item] = last
        if self._on_loop:
            _, known = self._machine.occupy_loop(self._host.land_here_s, now)
            delay = known - now
        else:
            delay = self._machine.to_loop[self._time.lane[last]]
        self._at(now + delay, now, LAND, item)

    def _land(self, item: int, now: int) -> None:
        self._time.landed[item], landed = self._machine.occupy_loop(self._host.land_s, now)
        self._at(landed, now, LANDED, item)

    def _deliver(self, item: int, now: int) -> None:
        """Free what the item held, and let the consumer have all that is complete in order."""
        last = self._time.finished_by[item]
        self._on_loop = True
        self._resume(self._place(item).leave(item), now, last)
        if item >= self._items:
            self._end_batch(item, now)
            return
        self._has_landed[item] = True
        while self._delivered < self._items and self._has_landed[self._delivered]:
            self._delivered += 1
            self._permits += 1
        if self._next < self._items and self._permits and not self._is_admitting:
            self._time.admitted_by[self._next] = last
            self._admit(now)

    # Steps: offered to lanes when they have all they wait for.

    def _submit(self, item: int, steps: list[int], now: int, cause: int) -> None:
        base = item * self._n if item < self._items else self._time.base(item)
        claiming = self._steps[item].claiming
        for step in steps:  # grows on the way
            if step in claiming and not self._place(item).claim(item, step):
                continue
            steps += self._offer(item, base + step, step, now, cause)

    def _place(self, item: int) -> SlotPlaces:
        return self._steps[item].places[self._time.variant[item]]

    def _offer(self, item: int, entry: int, step: int, now: int, cause: int) -> Sequence[int]:
        """Note that a step is ready; return those that are ready with it, if its lane is given it.

        Else it waits for its turn.
        """
        self._time.ready[entry] = now
        self._time.bound[entry] = cause
        lane = self._time.lane[entry]
        rank = self._steps[item].rank[step]
        if not self._ready[lane].offer(self._ages[item], rank, entry):
            return ()
        machine = self._machine
        if machine.may_run_here and machine.runs_here(entry, lane, now, on_loop=self._on_loop):
            return ()
        return self._give(item, entry, step, now)

    def _give(self, item: int, entry: int, step: int, now: int) -> Sequence[int]:
        """Give a lane a step; return those that may be given to lanes behind it now."""
        steps = self._steps[item]
        if step in steps.calls:
            self._machine.begin_call(entry, self._time.lane[entry], now)
            self._tickets[entry] = self._next_ticket()
            heappush(self._holders, (self._tickets[entry], self._hand_over, entry))
            return ()
        self._machine.give(entry, self._time.lane[entry], now)
        behind = steps.behind[step]
        return self._progress[item].count_down(behind) if behind else ()

    def _resume(self, released: Sequence[Grant], now: int, cause: int) -> None:
        """Start what waited for memory; items are fed as soon as this event is over."""
        for item, step in released:
            if step == ADMISSION:
                self._time.admitted_by[item] = cause
                self._push_first(now, GRANTED, item)
            else:
                more = self._offer(item, self._time.base(item) + step, step, now, cause)
                self._submit(item, list(more), now, cause)

    def _begin(self, lane: int, now: int) -> None:
        self._machine.begin(lane, now)

    def _end_shared(self, version: int, now: int) -> None:
        lane = self._machine.take_ended(version, now)
        if lane != NEVER:
            self._end(lane, now)

    def _end(self, lane: int, now: int) -> None:
        entry = self._machine.end(lane, now)
        if entry == NEVER:
            return
        if report := self._machine.report[lane]:
            self._push(now + report, KNOWN, entry)
            self._machine.start(lane, now)
            return
        self._on_loop = self._machine.on_loop[lane]
        is_last = self._take_note(entry, now)
        self._machine.start(lane, now)
        if is_last:
            self._finish(self._owner(entry), now, entry)

    def _end_call(self, entry: int, now: int) -> None:
        self._on_loop = True
        self._time.ended[entry] = now
        self._machine.end_call(entry)
        if self._take_note(entry, now):
            self._finish(self._owner(entry), now, entry)

    def _complete(self, entry: int, now: int) -> None:
        self._on_loop = False
        if self._take_note(entry, now):
            self._finish(self._owner(entry), now, entry)

    def _take_note(self, entry: int, now: int) -> bool:
        """Do what the scheduler does when it learns of an end; say whether it was an item's last.

        First what follows joins those that wait, then the lane is given the best of them.
        """
        machine = self._machine
        machine.known[entry] = True
        item, step = (
            divmod(entry, self._n) if entry < self._end_of_items else self._time.place(entry)
        )
        steps = self._steps[item]
        lane = self._time.lane[entry]
        if machine.notice_s[lane]:
            machine.hinder(machine.notice_s[lane])
        machine.resume(entry, now)
        if after := steps.after[step]:
            self._submit(item, self._progress[item].count_down(after), now, entry)
        if step in steps.releasing:
            granted = self._place(item).complete(item, step)
            self._resume(granted, now, entry)
        following = self._ready[lane].take()
        if following is not None:
            other, its_step = (
                divmod(following, self._n)
                if following < self._end_of_items
                else self._time.place(following)
            )
            if more := self._give(other, following, its_step, now):
                self._submit(other, list(more), now, entry)
        self._left[item] -= 1
        return not self._left[item]

    def _locate(self, entry: int) -> tuple[int, int]:
        """Return whose step an entry is, and which."""
        if entry < self._end_of_items:
            return divmod(entry, self._n)
        return self._time.place(entry)

    def _owner(self, entry: int) -> int:
        return self._locate(entry)[0]

    # Rows: handed over by steps that wait for them, and run in batches, which are no items. What
    # tasks of the loop would do at the same time, each to its end, they do by ticket.

    def _row_queue(self, name: str, work: RowWork, variants: int) -> _RowsOfQueue:
        places = [SlotPlaces(work.regions, work.in_flight) for _ in range(variants)]
        return _RowsOfQueue(
            name, work, _StepsOfKind(work.full.order(), places, NO_CALLS), RowQueue(work.size)
        )

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _hand_over(self, entry: int, now: int) -> None:
        """Put the rows of a step in their queue."""
        item, step = self._locate(entry)
        call = self._steps[item].calls[step]
        due_s = now / 1e9 + call.max_delay_s
        block = _HeldRows(
            call.rows, (), now / 1e9, due_s, entry=entry, since_ns=now, left=call.rows
        )
        if not call.rows:
            self._end_rows(block)
            return
        index = self._queue_index[call.queue]
        self._rows[index].queue.add(block)
        self._look(index, now)

    def _end_rows(self, block: _HeldRows) -> None:
        heappush(self._holders, (self._tickets[block.entry], self._end_call, block.entry))

    def _look(self, index: int, now: int) -> None:
        """Put together the batches of a queue that may start now."""
        rows = self._rows[index]
        in_flight = rows.work.in_flight * len(rows.steps.places)
        while len(rows.under_way) < in_flight and (runs := rows.queue.take_batch(now / 1e9)):
            self._put_together(rows, index, runs, now)
        due_s = rows.queue.due_s()
        if len(rows.under_way) < in_flight and due_s < float("inf"):
            due_ns = max(ceil(due_s * 1e9), now + 1)
            if due_ns != rows.due_ns:
                rows.due_ns = due_ns
                self._push(due_ns, DUE, index)

    def _put_together(
        self, rows: _RowsOfQueue, index: int, runs: Sequence[RowRun[_HeldRows]], now: int
    ) -> None:
        """Take note of a batch, which starts when its ticket is called."""
        count = sum(run.stop - run.start for run in runs)
        first = min(run.block.since_ns for run in runs)
        waited = sum((now - run.block.since_ns) * (run.stop - run.start) for run in runs)
        n_steps = len(rows.steps.order.counts)
        owner = self._time.add(SimulatedBatch(rows.name, count, first, now, waited), n_steps)
        self._time.admitted_by[owner] = max(run.block.entry for run in runs)
        self._machine.add(n_steps)
        self._steps.append(rows.steps)
        self._ages.append(NEVER)
        rows.under_way[owner] = runs
        self._batch_rows[owner] = rows, index
        heappush(self._holders, (self._next_ticket(), self._start_batch, owner))

    def _start_batch(self, owner: int, now: int) -> None:
        rows, _ = self._batch_rows[owner]
        work = rows.work.at(self._time.batches[owner - self._items].rows)
        variant = self._choose_variant()
        self._machine.place_batch(owner, variant, work, rows.steps.order)
        self._steps[owner] = replace(rows.steps, calls=work.calls)
        if rows.steps.places[variant].under_way < rows.work.in_flight:
            self._give_place(owner, variant, now)
        else:
            rows.waiting.append((owner, variant))

    def _end_batch(self, owner: int, now: int) -> None:
        """End the calls whose last rows these were, and let others start."""
        rows, index = self._batch_rows.pop(owner)
        variant = self._time.variant[owner]
        following = next((one for one in rows.waiting if one[1] == variant), None)
        if following is not None:
            rows.waiting.remove(following)
            self._give_place(*following, now)
        for run in rows.under_way.pop(owner):
            run.block.left -= run.stop - run.start
            if not run.block.left:
                self._end_rows(run.block)
        self._look(index, now)
