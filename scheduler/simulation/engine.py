"""Discrete-event simulation of the scheduler, on a clock that jumps to the next event.

The scheduler's own classes decide which step may start: `ItemProgress`, `RegionRing`, `ItemOrder`,
`ReadyQueue` and, for replicas, `Rotation`. `Machine` models durations, `rows` the batches of rows.
Events at the same time are handled in the order of their causes.

A model of its own would drift from the scheduler with each change of a rule, and planning would
optimize for a machine that does not exist. With the same classes only durations are a model, and
tests compare whole timelines with sessions on simulated devices, to the nanosecond.

Time is an integer of nanoseconds: sums of floats depend on their order, and ties, which are common
with equal stages, would be broken by rounding. The order of causes breaks them: the event that was
caused first comes first. Where real threads race, the engine takes one of the outcomes.

The engine runs thousands of times while a partition is chosen. So events are tuples in one heap,
handlers are looked up by number, and an item is not an object: step s of item i is number
i * steps + s.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from heapq import heappop, heappush

from ..dispatch.back_pressure import Permits
from ..dispatch.item_order import ItemOrder
from ..dispatch.ready import ItemProgress, ReadyQueue
from ..dispatch.region_ring import Grant
from ..dispatch.rotation import Rotation
from ..plans.regions import ADMISSION, Region
from .machine import AWAITED, BEGIN, END, SHARED_END, Machine
from .places import SlotPlaces
from .rows import SimulatedRows, StepsOfKind
from .workload import NEVER, RowWork, SimulatedHost, Timeline, Workload, to_ns

ALONE = SimulatedHost()

KNOWN, GRANTED, FED, LAND, LANDED, FREE, DUE = range(AWAITED + 1, AWAITED + 8)
"""Events: the scheduler learns of an end; an item may be fed, or has been; the loop reads its
results; they are copied out; the loop may admit the next item; a batch is due."""

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
    keys: Sequence[Hashable] = (),
) -> Timeline:
    """Simulate a stream of `items` of `workload` that are all available at the start.

    An item is admitted once the item `max_in_flight` before it, and all earlier ones, have landed.
    Variants have equal shares, rounded up, and `regions` of their own. `host` describes this
    process. `rows` describes the work of each queue's batches, and `keys` the state of each item,
    of which there is one by default.
    """
    return SimulatedRun(workload, items, max_in_flight, regions, host, rows, keys).run()


class SimulatedRun:
    """A simulated stream; `steps` and `ages`, their priorities, are per item, then per batch."""

    def __init__(
        self,
        workload: Workload,
        items: int,
        max_in_flight: int,
        regions: Sequence[Region],
        host: SimulatedHost,
        rows: Mapping[str, RowWork],
        keys: Sequence[Hashable],
    ) -> None:
        self._n = len(workload.duration_s)
        self._items, self._end_of_items = items, items * len(workload.duration_s)
        self._host = host
        self.time = Timeline(self._n, items)
        self._events: list[tuple[int, int, int, int]] = []  # when, order, event, subject
        self._order = 0
        self._handlers = (
            self._end, self._end_shared, self._begin, self.end_call, self._complete, self._feed,
            self._start_item, self._land, self._deliver, self._go_on, self._look,
        )  # fmt: skip
        order = workload.order()
        self.machine = Machine(workload, order, host, self.time, self._push)
        self._ready = [ReadyQueue[int](lane.depth) for lane in workload.lanes]
        self._progress: dict[int, ItemProgress] = {}
        self._left: dict[int, int] = {}
        self._ordered, self._item_order, self._keys = workload.ordered, ItemOrder(), keys

        variants = len(workload.variants)
        # Rounded up: with fewer, items would wait in spite of a free permit.
        slots = -(-max_in_flight // variants)
        self._places = [SlotPlaces(regions, slots) for _ in range(variants)]
        self.steps = [StepsOfKind(order, self._places, workload.calls)] * items
        self.ages, self._age = [NEVER] * items, 0
        self._batches = SimulatedRows(self, rows, variants)
        self._rotation = Rotation(variants)
        self._permits = Permits(max_in_flight)
        self._next = self._delivered = 0
        self._is_admitting = False
        self._on_loop = True
        """Whether the current event happens on the loop's thread."""
        self._has_landed = [False] * items

    def run(self) -> Timeline:
        self._admit(0)
        events, holders, now = self._events, self._batches.holders, 0
        while events or holders:
            # First the loop's other work, then ticket holders, then devices.
            if holders and not (events and events[0][:2] < (now, 0)):
                _, handler, subject = heappop(holders)
                handler(subject, now)
            else:
                now, _, event, subject = heappop(events)
                self._handlers[event](subject, now)
        assert self._delivered == self._items, "every item lands"
        return self.time

    def _push(self, time: int, event: int, subject: int) -> None:
        self._order += 1
        heappush(self._events, (time, self._order, event, subject))

    def _push_first(self, time: int, event: int, subject: int) -> None:
        self._order += 1
        heappush(self._events, (time, -1 << 60 | self._order, event, subject))

    def _at(self, time: int, now: int, event: int, subject: int) -> None:
        if time > now:
            self._push_first(time, event, subject)
        else:
            self._handlers[event](subject, now)

    # Items: admitted in order, landed as they end, delivered in order.

    def _admit(self, now: int) -> None:
        if self._is_admitting or self._next == self._items or not self._permits.take():
            return
        item = self._next
        self._next += 1
        # One at a time, as in the loop: the next item follows once this one's first steps are
        # submitted.
        self._is_admitting = True
        # Batches count as load, so the variant with the least may have no slot for an item.
        variant = self.choose_variant([n for n, one in enumerate(self._places) if one.is_full])
        self.machine.place(item, variant)
        self.give_place(item, variant, now)

    def choose_variant(self, full: Sequence[int] = ()) -> int:
        """Return the next variant of the rotation; full ones come last."""
        if len(self._places) == 1:
            return 0
        every = [self._places, *self._batches.places]
        return self._rotation.choose(
            [sum(one.under_way for one in together) for together in zip(*every, strict=True)], full
        )

    def give_place(self, item: int, variant: int, now: int) -> None:
        """Give `item`, or a batch, a slot of `variant`; start it `now` if claims are granted."""
        steps = self.steps[item]
        places = steps.places[variant]
        self.time.slot[item] = places.admit(item)
        if self._ordered.claims and item < self._items:
            # Items are numbered as they are admitted.
            self._item_order.admit(self._ordered, self._keys[item] if self._keys else None)
        # Otherwise `_resume` starts it when the memory is released.
        if ADMISSION not in steps.claiming or places.claim(item, ADMISSION):
            self._feed(item, now)

    def _feed(self, item: int, now: int) -> None:
        self.time.admitted[item], fed = self.machine.occupy_loop(self._host.feed_s, now)
        self._at(fed + to_ns(self._host.feed_delay_s), now, FED, item)

    def _start_item(self, item: int, now: int) -> None:
        order = self.steps[item].order
        self._progress[item] = ItemProgress(order.counts, order.after)
        self._left[item] = len(order.counts)
        # Ordered by start as in a session's lanes: on variants, items may overtake each other.
        self.ages[item] = self._age
        self._age += 1
        self._on_loop = True
        self._submit(item, list(order.first), now, NEVER)
        # Without steps, no end would trigger this.
        if not order.counts:
            self._finish(item, now, NEVER)
        if item < self._items:
            self._go_on(item, now)

    def _go_on(self, item: int, now: int) -> None:
        if self.machine.may_run_here and self.machine.loop_free > now:
            self._push(self.machine.loop_free, FREE, item)
        else:
            self._is_admitting = False
            self._admit(now)

    def _finish(self, item: int, now: int, last: int) -> None:
        del self._progress[item], self._left[item]
        self.time.finished_by[item] = last
        # Ends on the loop's thread are known at once; other threads have to wake the loop.
        if self._on_loop:
            _, known = self.machine.occupy_loop(self._host.land_here_s, now)
            delay = known - now
        else:
            delay = self.machine.to_loop[self.time.lane[last]]
        self._at(now + delay, now, LAND, item)

    def _land(self, item: int, now: int) -> None:
        self.time.landed[item], landed = self.machine.occupy_loop(self._host.land_s, now)
        self._at(landed, now, LANDED, item)

    def _deliver(self, item: int, now: int) -> None:
        last = self.time.finished_by[item]
        self._on_loop = True
        self._resume(self._place(item).leave(item), now, last)
        if item >= self._items:
            self._batches.end(item, now)
            return
        if self._ordered.claims:
            self._resume(self._item_order.leave(item), now, last)
        self._has_landed[item] = True
        # In order, as in streams: a late item holds the permits of items that overtook it.
        while self._delivered < self._items and self._has_landed[self._delivered]:
            self._delivered += 1
            self._permits.give_back()
        if self._next < self._items and self._permits.free and not self._is_admitting:
            self.time.admitted_by[self._next] = last
            self._admit(now)

    # Steps: offered to lanes once their waits are over.

    def _submit(self, item: int, steps: list[int], now: int, cause: int) -> None:
        base = item * self._n if item < self._items else self.time.base(item)
        claiming = self.steps[item].claiming
        for step in steps:  # grows on the way
            if step in claiming and not self._place(item).claim(item, step):
                continue
            if self._has_order(item, step) and not self._item_order.claim(item, step):
                continue
            steps += self._offer(item, base + step, step, now, cause)

    def _has_order(self, item: int, step: int) -> bool:
        return step in self._ordered.claims and item < self._items

    def _place(self, item: int) -> SlotPlaces:
        return self.steps[item].places[self.time.variant[item]]

    def _offer(self, item: int, entry: int, step: int, now: int, cause: int) -> Sequence[int]:
        """Mark `step` of `item` as ready `now`; return steps that may follow at once if it starts.

        Its `entry` was made ready by `cause`.
        """
        self.time.ready[entry] = now
        self.time.bound[entry] = cause
        lane = self.time.lane[entry]
        rank = self.steps[item].rank[step]
        if not self._ready[lane].offer(self.ages[item], rank, entry):
            return ()
        machine = self.machine
        if machine.may_run_here and machine.runs_here(entry, lane, now, on_loop=self._on_loop):
            return ()
        return self._give(item, entry, step, now)

    def _give(self, item: int, entry: int, step: int, now: int) -> Sequence[int]:
        """Start `step` of `item` on its lane `now`; return the steps that may follow it at once."""
        steps = self.steps[item]
        if step in steps.calls:
            self.machine.begin_call(entry, self.time.lane[entry], now)
            self._batches.expect(entry)
            return ()
        # Followers on a device that keeps the order need not wait for the end.
        self.machine.give(entry, self.time.lane[entry], now)
        behind = steps.behind[step]
        return self._progress[item].count_down(behind) if behind else ()

    def _resume(self, released: Sequence[Grant], now: int, cause: int) -> None:
        """Start steps that waited for memory `released` by `cause`; items are fed after them."""
        for item, step in released:
            if step == ADMISSION:
                self.time.admitted_by[item] = cause
                self._push_first(now, GRANTED, item)
            else:
                self._submit(item, [step], now, cause)

    def push_due(self, index: int, time: int) -> None:
        self._push(time, DUE, index)

    def _look(self, index: int, now: int) -> None:
        self._batches.look(index, now)

    def _begin(self, lane: int, now: int) -> None:
        self.machine.begin(lane, now)

    def _end_shared(self, version: int, now: int) -> None:
        lane = self.machine.take_ended(version, now)
        if lane != NEVER:
            self._end(lane, now)

    def _end(self, lane: int, now: int) -> None:
        entry = self.machine.end(lane, now)
        if entry == NEVER:
            return
        # The lane starts its next work at once; the scheduler learns of the end later.
        if report := self.machine.report[lane]:
            self._push(now + report, KNOWN, entry)
            self.machine.start(lane, now)
            return
        self._on_loop = self.machine.on_loop[lane]
        is_last = self._take_note(entry, now)
        self.machine.start(lane, now)
        if is_last:
            self._finish(self._owner(entry), now, entry)

    def end_call(self, entry: int, now: int) -> None:
        self._on_loop = True
        self.time.ended[entry] = now
        self.machine.end_call(entry)
        if self._take_note(entry, now):
            self._finish(self._owner(entry), now, entry)

    def _complete(self, entry: int, now: int) -> None:
        self._on_loop = False
        if self._take_note(entry, now):
            self._finish(self._owner(entry), now, entry)

    def _take_note(self, entry: int, now: int) -> bool:
        """Handle the end of `entry`, known `now`; return whether it was the item's last.

        First the followers become ready, then the lane takes the best waiting step.
        """
        machine = self.machine
        machine.known[entry] = True
        item, step = (
            divmod(entry, self._n) if entry < self._end_of_items else self.time.place(entry)
        )
        steps = self.steps[item]
        lane = self.time.lane[entry]
        # The bookkeeping occupies a core, which may be one that devices compute on.
        if machine.notice_s[lane]:
            machine.hinder(machine.notice_s[lane])
        machine.resume(entry, now)
        if after := steps.after[step]:
            self._submit(item, self._progress[item].count_down(after), now, entry)
        if step in steps.releasing:
            granted = self._place(item).complete(item, step)
            self._resume(granted, now, entry)
        if self._has_order(item, step):
            self._resume(self._item_order.complete(item, step), now, entry)
        following = self._ready[lane].take()
        if following is not None:
            other, its_step = (
                divmod(following, self._n)
                if following < self._end_of_items
                else self.time.place(following)
            )
            if more := self._give(other, following, its_step, now):
                self._submit(other, list(more), now, entry)
        self._left[item] -= 1
        return not self._left[item]

    def locate(self, entry: int) -> tuple[int, int]:
        if entry < self._end_of_items:
            return divmod(entry, self._n)
        return self.time.place(entry)

    def _owner(self, entry: int) -> int:
        return self.locate(entry)[0]
