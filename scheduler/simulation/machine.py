"""The simulated machine: lanes, the cores that they share, and the loop's thread.

A lane runs its steps in the order of submission. This module models waits and durations; the engine
decides which steps are submitted, and when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import TypeAlias

from ..dispatch.hand_over import get_hand_over_ns
from .workload import NEVER, DispatchOrder, SimulatedHost, SimulatedLane, Timeline, Workload, to_ns

Push: TypeAlias = Callable[[int, int, int], None]
"""Schedules an event: time, event, subject."""

END, SHARED_END, BEGIN, AWAITED = range(4)
"""Events: work ends, alone or on shared cores; work begins on shared cores; a call ends."""

ROUNDING_NS = 1e-6
"""Rounding error of sums of shares."""


class SharedCores:
    """Work on shared cores, in nanoseconds of progress per piece of work."""

    def __init__(self, host: SimulatedHost, lanes: int) -> None:
        self._rate = [host.rate(active) for active in range(lanes + 1)]
        self._active: list[tuple[float, int, int]] = []  # progress at its end, order, lane
        self._order = 0
        self._done = 0.0
        self._now = 0

    def begin(self, lane: int, duration_ns: int, now: int) -> None:
        """Start work on `lane` that takes `duration_ns` from `now` if it runs alone."""
        self._advance(now)
        self._order += 1
        heappush(self._active, (self._done + duration_ns, self._order, lane))

    def next_end(self) -> int | None:
        """Return when the next work ends unless other work begins before."""
        if not self._active:
            return None
        left = (self._active[0][0] - self._done) / self._rate[len(self._active)]
        return self._now + max(0, ceil(left - ROUNDING_NS))

    def end(self, now: int) -> int:
        self._advance(now)
        return heappop(self._active)[2]

    def _advance(self, now: int) -> None:
        self._done += (now - self._now) * self._rate[len(self._active)]
        self._now = now


class Machine:
    """Lanes at work, and the thread of the scheduler's loop.

    `known` says for every entry whether the scheduler knows of its end. Per lane, `report` and
    `to_loop` are the ns until other threads, and the loop, know of an end; `notice_s` is the loop's
    work per step, and `on_loop` says whether the latest work ran on the loop's thread. `loop_free`
    is when the loop has finished all known work.
    """

    def __init__(
        self,
        workload: Workload,
        order: DispatchOrder,
        host: SimulatedHost,
        time: Timeline,
        push: Push,
    ) -> None:
        lanes, count = workload.lanes, len(workload.lanes)
        self._n, self._end_of_items = time.n_steps, time.n_steps * time.items
        self._time, self._push = time, push
        self._variants = [
            (variant.lane, [to_ns(seconds) for seconds in variant.duration_s])
            for variant in workload.variants
        ]
        self._usual_quick = [find_quick_steps(workload, ns) for _, ns in self._variants]
        # Per item, then per batch.
        self._durations: list[list[int]] = [[]] * time.items
        self._quick: list[list[bool]] = [[]] * time.items
        self._native = [order.ahead] * time.items
        self.may_run_here = any(map(any, self._usual_quick))
        self._compile(lanes, host)
        self._pending: list[deque[int]] = [deque() for _ in range(count)]
        self._is_busy = [False] * count
        self._running, self._latest = [NEVER] * count, [NEVER] * count
        self._free, self._debt = [0] * count, [0] * count
        self._waiters: dict[int, list[int]] = {}
        self._cores, self._version = SharedCores(host, count), 0
        self.loop_free = 0
        self._is_asleep = [False] * count
        self.known = [False] * len(time.ready)
        self.on_loop = [False] * count

    def _compile(self, lanes: Sequence[SimulatedLane], host: SimulatedHost) -> None:
        self._awaits = [lane.awaits for lane in lanes]
        self._gap = [to_ns(lane.gap_s) for lane in lanes]
        devices = [lane.device for lane in lanes]  # the loop is last
        self._wake = [[to_ns(lane.woken_by_s(one)) for one in (*devices, None)] for lane in lanes]
        self._here = [to_ns(lane.here_s) for lane in lanes]
        self.notice_s = [lane.notice_s for lane in lanes]
        self.report = [to_ns(lane.report_s) for lane in lanes]
        self.to_loop = [to_ns(host.land_delay_s + lane.loop_s) for lane in lanes]
        self._on_host = [i for i, lane in enumerate(lanes) if lane.on_host]
        on_host = len(self._on_host)
        self._most = host.cores or len(lanes) + 1
        slows = host.rate(on_host) < 1.0 or (on_host > 1 and host.contention > 0)
        self._shares = [slows and lane.on_host for lane in lanes]
        self._hindered = [i for i, lane in enumerate(lanes) if lane.shares_interpreter]

    def place(self, item: int, variant: int) -> None:
        lanes, self._durations[item] = self._variants[variant]
        self._quick[item] = self._usual_quick[variant]
        self._set(item, variant, lanes)

    def add(self, n_steps: int) -> None:
        """Reserve entries for a batch of `n_steps`, which `place_batch` fills."""
        self._durations.append([])
        self._quick.append([])
        self._native.append(())
        self.known += [False] * n_steps

    def place_batch(self, owner: int, variant: int, work: Workload, order: DispatchOrder) -> None:
        placed = work.variants[variant]
        durations = self._durations[owner] = [to_ns(seconds) for seconds in placed.duration_s]
        self._quick[owner] = find_quick_steps(work, durations)
        self._native[owner] = order.ahead
        self._set(owner, variant, placed.lane)

    def _locate(self, entry: int) -> tuple[int, int]:
        if entry < self._end_of_items:
            return divmod(entry, self._n)
        return self._time.place(entry)

    def _set(self, owner: int, variant: int, lanes: Sequence[int]) -> None:
        base = self._time.base(owner)
        self._time.lane[base : base + len(lanes)] = lanes
        self._time.variant[owner] = variant

    # The loop's thread does one thing at a time.

    def occupy_loop(self, seconds: float, now: int) -> tuple[int, int]:
        """Occupy the loop for `seconds` once it is free after `now`; return the start and end."""
        start = max(now, self.loop_free)
        self.loop_free = start + self.hinder(seconds)
        return start, self.loop_free

    def hinder(self, seconds: float) -> int:
        """Return `seconds` of work of the loop in ns; lanes that yield a core to it end later."""
        spent = to_ns(seconds)
        if not spent:
            return 0
        waiting = [lane for lane in self._hindered if self._works_beside(lane)]
        if not waiting:
            waiting = [lane for lane in self._on_host if self._works_beside(lane)]
            waiting = waiting if len(waiting) >= self._most else []
        for lane in waiting:
            self._debt[lane] += spent // len(waiting)
        return spent

    def _works_beside(self, lane: int) -> bool:
        return self._is_busy[lane] and not self.on_loop[lane]

    # Lanes begin and end submitted steps.

    def runs_here(self, entry: int, lane: int, now: int, *, on_loop: bool) -> bool:
        """Start a quick `entry` where it became ready if `lane` is idle `now`; say if it did.

        With `on_loop`, it became ready on the loop.
        """
        item, step = (
            divmod(entry, self._n) if entry < self._end_of_items else self._time.place(entry)
        )
        if not self._quick[item][step] or self._is_busy[lane]:
            return False
        self.on_loop[lane], self._is_asleep[lane] = on_loop, True
        time = self._time
        start = max(now, time.ready[entry]) + self._here[lane]
        duration = self._durations[item][step]
        if on_loop:
            start = max(start, self.loop_free + self._here[lane])
            self.loop_free = start + duration
        self._occupy(lane, entry, start, duration, now)
        return True

    def give(self, entry: int, lane: int, now: int) -> None:
        item, step = (
            divmod(entry, self._n) if entry < self._end_of_items else self._time.place(entry)
        )
        if self._awaits[lane]:
            self.begin_call(entry, lane, now)
            self._time.ended[entry] = now + self._durations[item][step]
            self._push(self._time.ended[entry], AWAITED, entry)
            return
        self._pending[lane].append(entry)
        if waits := self._native[item][step]:
            for wait in waits:
                before = entry - step + wait
                if not self.known[before]:
                    self._waiters.setdefault(before, []).append(lane)
        if not self._is_busy[lane]:
            self.start(lane, now)

    def begin_call(self, entry: int, lane: int, now: int) -> None:
        if now > self._time.ready[entry]:
            self._time.bound[entry] = self._latest[lane]
        self._time.started[entry] = now

    def end_call(self, entry: int) -> None:
        self._latest[self._time.lane[entry]] = entry

    def resume(self, entry: int, now: int) -> None:
        """Start work at `now` that waited until the end of `entry` is known."""
        if entry in self._waiters:
            for waiting in reversed(self._waiters.pop(entry)):
                self.start(waiting, now)

    def start(self, lane: int, now: int) -> None:
        pending = self._pending[lane]
        if self._is_busy[lane] or not pending:
            return
        entry = pending[0]
        item, step = (
            divmod(entry, self._n) if entry < self._end_of_items else self._time.place(entry)
        )
        waits = self._native[item][step]
        for wait in waits:
            if not self.known[entry - step + wait]:
                return
        pending.popleft()
        time = self._time
        cause = time.bound[entry]
        source = NEVER if cause == NEVER else time.lane[cause]
        start = time.ready[entry] + (self._wake[lane][source] if source != lane else 0)
        for wait in waits:
            if time.ended[entry - step + wait] > start:
                start, time.bound[entry] = time.ended[entry - step + wait], entry - step + wait
        latest = self._latest[lane]
        if latest != NEVER and self._free[lane] + self._gap[lane] > start:
            start, time.bound[entry] = self._free[lane] + self._gap[lane], latest
        if self._is_asleep[lane]:  # another thread ran its latest work
            start, time.bound[entry] = max(start, now + self._wake[lane][NEVER]), latest
            self._is_asleep[lane] = False
        elif now > start:  # it was submitted late, once the scheduler knew of the room
            start, time.bound[entry] = now, latest
        self.on_loop[lane] = False
        self._occupy(lane, entry, start, self._durations[item][step], now)

    def _occupy(self, lane: int, entry: int, start: int, duration: int, now: int) -> None:
        self._time.started[entry] = start
        self._is_busy[lane] = True
        self._running[lane] = entry
        if not self._shares[lane]:
            self._push(start + duration, END, lane)
        elif start > now:
            self._push(start, BEGIN, lane)
        else:
            self.begin(lane, now)

    def end(self, lane: int, now: int) -> int:
        """End work of `lane` at `now`; return its entry, `NEVER` if it takes longer after all."""
        if self._debt[lane]:
            self._push(now + self._debt[lane], END, lane)
            self._debt[lane] = 0
            return NEVER
        entry = self._running[lane]
        self._time.ended[entry] = self._free[lane] = now
        self._latest[lane] = entry
        self._is_busy[lane] = False
        if self.on_loop[lane]:
            self.loop_free = max(self.loop_free, now)
        return entry

    # Shared cores run all work at one speed.

    def begin(self, lane: int, now: int) -> None:
        """Start work of `lane` at `now` on shared cores; its end depends on other work there."""
        item, step = self._locate(self._running[lane])
        self._cores.begin(lane, self._durations[item][step], now)
        self._foresee()

    def take_ended(self, version: int, now: int) -> int:
        """Return the lane whose work on shared cores ends now; `NEVER` for an old version."""
        if version != self._version:
            return NEVER
        lane = self._cores.end(now)
        self._foresee()
        return lane

    def _foresee(self) -> None:
        self._version += 1
        if (end := self._cores.next_end()) is not None:
            self._push(end, SHARED_END, self._version)


def find_quick_steps(workload: Workload, durations_ns: Sequence[int]) -> list[bool]:
    quick_ns = get_hand_over_ns()
    return [ns < quick_ns and step in workload.inline for step, ns in enumerate(durations_ns)]
