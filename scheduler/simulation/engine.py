"""Discrete events: what the scheduler would do, on a clock that jumps to the next event.

Which step may start is decided by the scheduler's own code: `Progress`, `Rings` and `ReadyQueue`.
Modelled here are lanes that do what they are given in that order, the cores that they share, and
the loop that feeds items and copies results out. Of events at the same time the one caused first
comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from ..memory.regions import ADMISSION, Region
from ..running.progress import Progress
from ..running.ready import ReadyQueue
from ..running.rings import Rings
from .cores import SharedCores
from .workload import NEVER, Host, Timeline, Workload

ALONE = Host()

END, SHARED_END, BEGIN, KNOWN, FED, LAND, LANDED = range(7)
"""Events: work ended, alone or on shared cores; work begins on shared cores; the scheduler knows of
an end; an item is fed; the loop takes up its results; they are copied out."""


def run(
    workload: Workload,
    *,
    items: int = 1,
    max_in_flight: int = 1,
    regions: Sequence[Region] = (),
    host: Host = ALONE,
) -> Timeline:
    """Return when everything happens to a stream of items, all of which are there at the start.

    Parameters
    ----------
    workload : Workload
    items : int
    max_in_flight : int
        An item is admitted when the one that many before it, and all earlier ones, have landed.
    regions : sequence of Region
        What steps wait for besides each other.
    host : Host
    """
    return _Run(workload, items, max_in_flight, Rings(regions), host).run()


class _Run:
    def __init__(
        self, workload: Workload, items: int, max_in_flight: int, rings: Rings, host: Host
    ) -> None:
        self._n = len(workload.duration_s)
        self._items = items
        self._host = host
        self._time = Timeline(self._n, items)
        self._compile(workload, host)
        self._events: list[tuple[int, int, int, int]] = []  # when, order, what, of whom
        self._order = 0
        self._handlers = (
            self._end, self._end_shared, self._begin, self._complete, self._start_item,
            self._land, self._deliver,
        )  # fmt: skip

        self._progress: dict[int, Progress] = {}
        self._left: dict[int, int] = {}
        self._rings = rings
        self._claiming, self._releasing = rings.claiming, rings.releasing

        count = len(workload.lanes)
        self._ready = [ReadyQueue[int](lane.depth) for lane in workload.lanes]
        self._pending: list[deque[int]] = [deque() for _ in range(count)]
        self._is_busy = [False] * count
        self._running, self._latest = [NEVER] * count, [NEVER] * count
        self._free, self._debt = [0] * count, [0] * count
        self._known = [False] * (self._n * items)
        self._waiters: dict[int, list[int]] = {}

        self._cores, self._version = SharedCores(host, count), 0
        self._permits = max_in_flight
        self._next = self._delivered = self._loop_free = 0
        self._is_admitting = False
        self._has_landed = [False] * items

    def _compile(self, workload: Workload, host: Host) -> None:
        """Turn the workload into what the inner loops read."""
        lanes = workload.lanes
        self._lane_of = workload.lane
        self._duration = [round(seconds * 1e9) for seconds in workload.duration_s]
        self._gap = [round(lane.gap_s * 1e9) for lane in lanes]
        devices = [lane.device for lane in lanes]  # and last the loop
        self._wake = [
            [round(lane.woken_by_s(one) * 1e9) for one in (*devices, None)] for lane in lanes
        ]
        self._notice = [lane.notice_s for lane in lanes]
        self._report = [round(lane.report_s * 1e9) for lane in lanes]
        self._to_loop = [round((host.land_delay_s + lane.loop_s) * 1e9) for lane in lanes]
        self._on_host = [i for i, lane in enumerate(lanes) if lane.on_host]
        on_host = len(self._on_host)
        self._most = host.cores or len(lanes) + 1
        slows = host.rate(on_host) < 1.0 or (on_host > 1 and host.contention > 0)
        self._shares = [slows and lane.on_host for lane in lanes]
        self._hindered = [i for i, lane in enumerate(lanes) if lane.shares_interpreter]
        order = workload.order()
        self._counts, self._after, self._behind, self._native, self._first, self._rank = order

    def run(self) -> Timeline:
        self._admit(0)
        events = self._events
        while events:
            now, _, what, whom = heappop(events)
            self._handlers[what](whom, now)
        assert self._delivered == self._items, "every item lands"
        return self._time

    def _at(self, time: int, now: int, what: int, whom: int) -> None:
        """Let the loop's business happen at a time; before all else that is due then."""
        if time > now:
            self._order += 1
            heappush(self._events, (time, -1 << 60 | self._order, what, whom))
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
        self._rings.admit()
        if ADMISSION not in self._claiming or self._rings.claim(item, ADMISSION):
            self._feed(item, now)

    def _feed(self, item: int, now: int) -> None:
        start = max(now, self._loop_free)
        self._time.admitted[item] = start
        self._loop_free = start + self._hinder(self._host.feed_s)
        fed = self._loop_free + round(self._host.feed_delay_s * 1e9)
        self._at(fed, now, FED, item)

    def _start_item(self, item: int, now: int) -> None:
        self._progress[item] = Progress(self._counts, self._after)
        self._left[item] = self._n
        self._submit(item, list(self._first), now, NEVER)
        if not self._n:
            self._finish(item, now, NEVER)
        self._is_admitting = False
        self._admit(now)

    def _finish(self, item: int, now: int, last: int) -> None:
        del self._progress[item], self._left[item]
        self._time.finished_by[item] = last
        lane = self._lane_of[last % self._n] if last != NEVER else NEVER
        delay = self._to_loop[lane] if last != NEVER else round(self._host.land_delay_s * 1e9)
        self._at(now + delay, now, LAND, item)

    def _land(self, item: int, now: int) -> None:
        start = max(now, self._loop_free)
        self._time.landed[item] = start
        self._loop_free = start + self._hinder(self._host.land_s)
        self._at(self._loop_free, now, LANDED, item)

    def _deliver(self, item: int, now: int) -> None:
        """Free what the item held, and let the consumer have all that is complete in order."""
        last = self._time.finished_by[item]
        self._resume(self._rings.leave(item), now, last)
        self._has_landed[item] = True
        while self._delivered < self._items and self._has_landed[self._delivered]:
            self._delivered += 1
            self._permits += 1
        if self._next < self._items and self._permits and not self._is_admitting:
            self._time.admitted_by[self._next] = last
            self._admit(now)

    def _hinder(self, seconds: float) -> int:
        """Return how many ns the loop works; whoever had to make way for it ends so much later."""
        spent = round(seconds * 1e9)
        if not spent:
            return 0
        waiting = [lane for lane in self._hindered if self._is_busy[lane]]
        if not waiting:
            waiting = [lane for lane in self._on_host if self._is_busy[lane]]
            waiting = waiting if len(waiting) >= self._most else []
        for lane in waiting:
            self._debt[lane] += spent // len(waiting)
        return spent

    # Steps: offered to lanes when they have all they wait for.

    def _submit(self, item: int, steps: list[int], now: int, cause: int) -> None:
        base = item * self._n
        for step in steps:  # grows on the way
            if step in self._claiming and not self._rings.claim(item, step):
                continue
            steps += self._offer(item, base + step, step, now, cause)

    def _offer(self, item: int, entry: int, step: int, now: int, cause: int) -> Sequence[int]:
        """Note that a step is ready; return those that are ready with it, if its lane is given it.

        Else it waits for its turn.
        """
        self._time.ready[entry] = now
        self._time.bound[entry] = cause
        if self._ready[self._lane_of[step]].offer(item, self._rank[step], entry):
            return self._give(item, entry, step, now)
        return ()

    def _give(self, item: int, entry: int, step: int, now: int) -> Sequence[int]:
        """Give a lane a step; return those that may be given to lanes behind it now."""
        lane = self._lane_of[step]
        self._pending[lane].append(entry)
        if waits := self._native[step]:
            for wait in waits:
                before = entry - step + wait
                if not self._known[before]:
                    self._waiters.setdefault(before, []).append(lane)
        if not self._is_busy[lane]:
            self._start(lane, now)
        behind = self._behind[step]
        return self._progress[item].count_down(behind) if behind else ()

    def _resume(self, released: Sequence[tuple[int, int]], now: int, cause: int) -> None:
        """Start what waited for memory."""
        for item, step in released:
            if step == ADMISSION:
                self._time.admitted_by[item] = cause
                self._feed(item, now)
            else:
                more = self._offer(item, item * self._n + step, step, now, cause)
                self._submit(item, list(more), now, cause)

    def _start(self, lane: int, now: int) -> None:
        """Begin the lane's first piece of work, if it is free and the work's waits are over."""
        pending = self._pending[lane]
        if self._is_busy[lane] or not pending:
            return
        entry = pending[0]
        step = entry % self._n
        waits = self._native[step]
        for wait in waits:
            if not self._known[entry - step + wait]:
                return
        pending.popleft()
        time = self._time
        cause = time.bound[entry]
        source = NEVER if cause == NEVER else self._lane_of[cause % self._n]
        start = time.ready[entry] + (self._wake[lane][source] if source != lane else 0)
        for wait in waits:
            if time.ended[entry - step + wait] > start:
                start, time.bound[entry] = time.ended[entry - step + wait], entry - step + wait
        latest = self._latest[lane]
        if latest != NEVER and self._free[lane] + self._gap[lane] > start:
            start, time.bound[entry] = self._free[lane] + self._gap[lane], latest
        if now > start:  # it was given late, when the scheduler knew that there was room
            start, time.bound[entry] = now, latest
        time.started[entry] = start
        self._is_busy[lane] = True
        self._running[lane] = entry
        if not self._shares[lane]:
            self._push(start + self._duration[step], END, lane)
        elif start > now:
            self._push(start, BEGIN, lane)
        else:
            self._begin(lane, now)

    def _end(self, lane: int, now: int) -> None:
        if self._debt[lane]:
            self._push(now + self._debt[lane], END, lane)
            self._debt[lane] = 0
            return
        entry = self._running[lane]
        self._time.ended[entry] = self._free[lane] = now
        self._latest[lane] = entry
        self._is_busy[lane] = False
        if self._report[lane]:
            self._push(now + self._report[lane], KNOWN, entry)
            self._start(lane, now)
            return
        is_last = self._take_note(entry, now)
        self._start(lane, now)
        if is_last:
            self._finish(entry // self._n, now, entry)

    def _complete(self, entry: int, now: int) -> None:
        if self._take_note(entry, now):
            self._finish(entry // self._n, now, entry)

    def _take_note(self, entry: int, now: int) -> bool:
        """Do what the scheduler does when it learns of an end; say whether it was an item's last.

        First what follows joins those that wait, then the lane is given the best of them.
        """
        self._known[entry] = True
        item, step = divmod(entry, self._n)
        lane = self._lane_of[step]
        if self._notice[lane]:
            self._hinder(self._notice[lane])
        if entry in self._waiters:
            for waiting in reversed(self._waiters.pop(entry)):
                self._start(waiting, now)
        if after := self._after[step]:
            self._submit(item, self._progress[item].count_down(after), now, entry)
        if step in self._releasing:
            self._resume(self._rings.complete(item, step), now, entry)
        following = self._ready[lane].take()
        if following is not None:
            other, its_step = divmod(following, self._n)
            if more := self._give(other, following, its_step, now):
                self._submit(other, list(more), now, entry)
        self._left[item] -= 1
        return not self._left[item]

    def _push(self, time: int, what: int, whom: int) -> None:
        self._order += 1
        heappush(self._events, (time, self._order, what, whom))

    def _begin(self, lane: int, now: int) -> None:
        """Begin work on shared cores, which changes when other work there ends."""
        self._cores.begin(lane, self._duration[self._running[lane] % self._n], now)
        self._foresee()

    def _foresee(self) -> None:
        self._version += 1
        if (end := self._cores.next_end()) is not None:
            self._push(end, SHARED_END, self._version)

    def _end_shared(self, version: int, now: int) -> None:
        if version == self._version:  # else work began or ended there meanwhile
            lane = self._cores.end(now)
            self._foresee()
            self._end(lane, now)
