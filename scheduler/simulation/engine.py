"""Discrete events: what the scheduler would do, on a clock that jumps to the next event.

Which step may start is decided by the scheduler's own code: `ItemProgress`, `RegionRing` and
`ReadyQueue`, and where items have a choice of replicas, `Rotation`. How long everything takes is up
to `Machine`.
Of events at the same time the one caused first comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ..dispatch.progress import ItemProgress
from ..dispatch.ready import ReadyQueue
from ..dispatch.region_ring import Grant
from ..dispatch.rotation import Rotation
from ..plans.regions import ADMISSION, Region
from .machine import AWAITED, BEGIN, END, SHARED_END, Machine
from .places import SlotPlaces
from .workload import NEVER, SimulatedHost, Timeline, Workload, ns_of

ALONE = SimulatedHost()

KNOWN, GRANTED, FED, LAND, LANDED, FREE = range(AWAITED + 1, AWAITED + 7)
"""Events: the scheduler knows of an end; an item may be fed, or is; the loop takes up its results;
they are copied out; the loop may admit the next one."""

assert (END, SHARED_END, BEGIN, AWAITED, KNOWN) == (0, 1, 2, 3, 4), "events have one number each"


def run(
    workload: Workload,
    *,
    items: int = 1,
    max_in_flight: int = 1,
    regions: Sequence[Region] = (),
    host: SimulatedHost = ALONE,
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
    """
    return _Run(workload, items, max_in_flight, regions, host).run()


class _Run:
    def __init__(
        self,
        workload: Workload,
        items: int,
        max_in_flight: int,
        regions: Sequence[Region],
        host: SimulatedHost,
    ) -> None:
        self._n = len(workload.duration_s)
        self._items = items
        self._host = host
        self._time = Timeline(self._n, items)
        self._events: list[tuple[int, int, int, int]] = []  # when, order, what, of whom
        self._order = 0
        self._handlers = (
            self._end, self._end_shared, self._begin, self._end_call, self._complete, self._feed,
            self._start_item, self._land, self._deliver, self._go_on,
        )  # fmt: skip
        order = workload.order()
        self._machine = Machine(workload, order, host, self._time, self._push)
        self._counts, self._after, self._behind, _, self._first, self._rank = order
        self._ready = [ReadyQueue[int](lane.depth) for lane in workload.lanes]
        self._progress: dict[int, ItemProgress] = {}
        self._left: dict[int, int] = {}

        variants = len(workload.variants)
        slots = -(-max_in_flight // variants)
        self._places = [SlotPlaces(regions, slots) for _ in range(variants)]
        self._claiming, self._releasing = self._places[0].claiming, self._places[0].releasing
        self._rotation = Rotation(variants)
        self._permits = max_in_flight
        self._next = self._delivered = 0
        self._is_admitting = False
        self._on_loop = True
        """Whether what happens does so on the loop's thread."""
        self._has_landed = [False] * items

    def run(self) -> Timeline:
        self._admit(0)
        events = self._events
        while events:
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
        variant = 0
        if len(self._places) > 1:
            variant = self._rotation.choose([one.under_way for one in self._places])
        places = self._places[variant]
        self._machine.place(item, variant)
        self._time.slot[item] = places.admit(item)
        if ADMISSION not in self._claiming or places.claim(item, ADMISSION):
            self._feed(item, now)

    def _feed(self, item: int, now: int) -> None:
        self._time.admitted[item], fed = self._machine.occupy_loop(self._host.feed_s, now)
        self._at(fed + ns_of(self._host.feed_delay_s), now, FED, item)

    def _start_item(self, item: int, now: int) -> None:
        self._progress[item] = ItemProgress(self._counts, self._after)
        self._left[item] = self._n
        self._on_loop = True
        self._submit(item, list(self._first), now, NEVER)
        if not self._n:
            self._finish(item, now, NEVER)
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
        self._resume(self._places[self._time.variant[item]].leave(item), now, last)
        self._has_landed[item] = True
        while self._delivered < self._items and self._has_landed[self._delivered]:
            self._delivered += 1
            self._permits += 1
        if self._next < self._items and self._permits and not self._is_admitting:
            self._time.admitted_by[self._next] = last
            self._admit(now)

    # Steps: offered to lanes when they have all they wait for.

    def _submit(self, item: int, steps: list[int], now: int, cause: int) -> None:
        base = item * self._n
        for step in steps:  # grows on the way
            if step in self._claiming and not self._claim(item, step):
                continue
            steps += self._offer(item, base + step, step, now, cause)

    def _claim(self, item: int, step: int) -> bool:
        return self._places[self._time.variant[item]].claim(item, step)

    def _offer(self, item: int, entry: int, step: int, now: int, cause: int) -> Sequence[int]:
        """Note that a step is ready; return those that are ready with it, if its lane is given it.

        Else it waits for its turn.
        """
        self._time.ready[entry] = now
        self._time.bound[entry] = cause
        lane = self._time.lane[entry]
        if not self._ready[lane].offer(item, self._rank[step], entry):
            return ()
        machine = self._machine
        if machine.may_run_here and machine.runs_here(entry, lane, now, on_loop=self._on_loop):
            return ()
        return self._give(item, entry, step, now)

    def _give(self, item: int, entry: int, step: int, now: int) -> Sequence[int]:
        """Give a lane a step; return those that may be given to lanes behind it now."""
        self._machine.give(entry, self._time.lane[entry], now)
        behind = self._behind[step]
        return self._progress[item].count_down(behind) if behind else ()

    def _resume(self, released: Sequence[Grant], now: int, cause: int) -> None:
        """Start what waited for memory; items are fed as soon as this event is over."""
        for item, step in released:
            if step == ADMISSION:
                self._time.admitted_by[item] = cause
                self._push_first(now, GRANTED, item)
            else:
                more = self._offer(item, item * self._n + step, step, now, cause)
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
            self._finish(entry // self._n, now, entry)

    def _end_call(self, entry: int, now: int) -> None:
        self._on_loop = True
        self._machine.end_call(entry)
        if self._take_note(entry, now):
            self._finish(entry // self._n, now, entry)

    def _complete(self, entry: int, now: int) -> None:
        self._on_loop = False
        if self._take_note(entry, now):
            self._finish(entry // self._n, now, entry)

    def _take_note(self, entry: int, now: int) -> bool:
        """Do what the scheduler does when it learns of an end; say whether it was an item's last.

        First what follows joins those that wait, then the lane is given the best of them.
        """
        machine = self._machine
        machine.known[entry] = True
        item, step = divmod(entry, self._n)
        lane = self._time.lane[entry]
        if machine.notice_s[lane]:
            machine.hinder(machine.notice_s[lane])
        machine.resume(entry, now)
        if after := self._after[step]:
            self._submit(item, self._progress[item].count_down(after), now, entry)
        if step in self._releasing:
            granted = self._places[self._time.variant[item]].complete(item, step)
            self._resume(granted, now, entry)
        following = self._ready[lane].take()
        if following is not None:
            other, its_step = divmod(following, self._n)
            if more := self._give(other, following, its_step, now):
                self._submit(other, list(more), now, entry)
        self._left[item] -= 1
        return not self._left[item]
