"""The machine that steps run on: lanes, the cores that they share, and the loop's thread.

A lane does what it is given in that order. What it waits for, and how long that takes, is modelled
here; what it is given, and when, is not decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import TypeAlias

from ..dispatch.hand_over import get_hand_over_ns
from .workload import NEVER, DispatchOrder, SimulatedHost, SimulatedLane, Timeline, Workload, ns_of

Push: TypeAlias = Callable[[int, int, int], None]
"""Notes that something happens: when, what, of whom."""

END, SHARED_END, BEGIN, AWAITED = range(4)
"""Events: work ended, alone or on shared cores; work begins on shared cores; a call is over."""

ROUNDING_NS = 1e-6
"""What sums of shares may be off by."""


class SharedCores:
    """Work on shared cores, counted in the nanoseconds that each piece of it has had so far."""

    def __init__(self, host: SimulatedHost, lanes: int) -> None:
        self._rate = [host.rate(active) for active in range(lanes + 1)]
        self._active: list[tuple[float, int, int]] = []  # where it ends, order, lane
        self._order = 0
        self._done = 0.0
        self._now = 0

    def begin(self, lane: int, duration_ns: int, now: int) -> None:
        """Let a lane's work begin that takes so long alone."""
        self._advance(now)
        self._order += 1
        heappush(self._active, (self._done + duration_ns, self._order, lane))

    def next_end(self) -> int | None:
        """Return when the next piece of work ends, if none begins before."""
        if not self._active:
            return None
        left = (self._active[0][0] - self._done) / self._rate[len(self._active)]
        return self._now + max(0, ceil(left - ROUNDING_NS))

    def end(self, now: int) -> int:
        """Take the work that ends now away, and return its lane."""
        self._advance(now)
        return heappop(self._active)[2]

    def _advance(self, now: int) -> None:
        self._done += (now - self._now) * self._rate[len(self._active)]
        self._now = now


class Machine:
    """Lanes at work, and the thread of the scheduler's loop.

    Parameters
    ----------
    workload : Workload
    order : DispatchOrder
        The workload's.
    host : SimulatedHost
    time : Timeline
        Where is written when steps begin and end.
    push : callable

    Attributes
    ----------
    known : list of bool
        For every entry whether the scheduler knows of its end.
    report, to_loop : list of int
        For every lane how many ns pass until others know of an end, and until the loop does.
    notice_s : list of float
        What the loop's process does for each step of a lane.
    loop_free : int
        When the loop is through with what is known of now.
    may_run_here : bool
        Whether there are steps for which `runs_here` may be true.
    on_loop : list of bool
        For every lane whether its latest work is, or was, done on the loop's thread.
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
            (variant.lane, [ns_of(seconds) for seconds in variant.duration_s])
            for variant in workload.variants
        ]
        self._usual_quick = [quick_steps(workload, ns) for _, ns in self._variants]
        # Of each item, and of each batch behind them.
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
        """Turn the lanes into what the inner loops read."""
        self._awaits = [lane.awaits for lane in lanes]
        self._gap = [ns_of(lane.gap_s) for lane in lanes]
        devices = [lane.device for lane in lanes]  # and last the loop
        self._wake = [[ns_of(lane.woken_by_s(one)) for one in (*devices, None)] for lane in lanes]
        self._here = [ns_of(lane.here_s) for lane in lanes]
        self.notice_s = [lane.notice_s for lane in lanes]
        self.report = [ns_of(lane.report_s) for lane in lanes]
        self.to_loop = [ns_of(host.land_delay_s + lane.loop_s) for lane in lanes]
        self._on_host = [i for i, lane in enumerate(lanes) if lane.on_host]
        on_host = len(self._on_host)
        self._most = host.cores or len(lanes) + 1
        slows = host.rate(on_host) < 1.0 or (on_host > 1 and host.contention > 0)
        self._shares = [slows and lane.on_host for lane in lanes]
        self._hindered = [i for i, lane in enumerate(lanes) if lane.shares_interpreter]

    def place(self, item: int, variant: int) -> None:
        """Let an item's steps be done on the lanes of one of the variants."""
        lanes, self._durations[item] = self._variants[variant]
        self._quick[item] = self._usual_quick[variant]
        self._set(item, variant, lanes)

    def add(self, n_steps: int) -> None:
        """Make room for a batch, which is `place_batch`'s later."""
        self._durations.append([])
        self._quick.append([])
        self._native.append(())
        self.known += [False] * n_steps

    def place_batch(self, owner: int, variant: int, work: Workload, order: DispatchOrder) -> None:
        """Let the steps of a batch, of its own workload, be done on one of its variants."""
        placed = work.variants[variant]
        durations = self._durations[owner] = [ns_of(seconds) for seconds in placed.duration_s]
        self._quick[owner] = quick_steps(work, durations)
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

    # The loop's thread: it does one thing at a time.

    def occupy_loop(self, seconds: float, now: int) -> tuple[int, int]:
        """Have the loop work for some time, as soon as it is free; return from when until when."""
        start = max(now, self.loop_free)
        self.loop_free = start + self.hinder(seconds)
        return start, self.loop_free

    def hinder(self, seconds: float) -> int:
        """Return how many ns the loop works; whoever had to make way for it ends so much later."""
        spent = ns_of(seconds)
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

    # Lanes: given steps, they begin and end them.

    def runs_here(self, entry: int, lane: int, now: int, *, on_loop: bool) -> bool:
        """Begin a step on the thread that made it ready, if that is what happens to it."""
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
        """Have a lane do a step after all that it was given before."""
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
        """Begin a call that nothing but the number of others may have held up."""
        if now > self._time.ready[entry]:
            self._time.bound[entry] = self._latest[lane]
        self._time.started[entry] = now

    def end_call(self, entry: int) -> None:
        """Take note of the end of a call."""
        self._latest[self._time.lane[entry]] = entry

    def resume(self, entry: int, now: int) -> None:
        """Start what lanes hold until a step's end is known."""
        if entry in self._waiters:
            for waiting in reversed(self._waiters.pop(entry)):
                self.start(waiting, now)

    def start(self, lane: int, now: int) -> None:
        """Begin the lane's first piece of work, if it is free and the work's waits are over."""
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
        if self._is_asleep[lane]:  # another thread did its latest work
            start, time.bound[entry] = max(start, now + self._wake[lane][NEVER]), latest
            self._is_asleep[lane] = False
        elif now > start:  # it was given late, when the scheduler knew that there was room
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
        """End the lane's work, and return which that is; `NEVER` if it takes longer after all."""
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

    # Cores: all work under way there goes at one speed.

    def begin(self, lane: int, now: int) -> None:
        """Begin work on shared cores, which changes when other work there ends."""
        item, step = self._locate(self._running[lane])
        self._cores.begin(lane, self._durations[item][step], now)
        self._foresee()

    def take_ended(self, version: int, now: int) -> int:
        """Return the lane whose work on shared cores ends; `NEVER` if that changed meanwhile."""
        if version != self._version:
            return NEVER
        lane = self._cores.end(now)
        self._foresee()
        return lane

    def _foresee(self) -> None:
        self._version += 1
        if (end := self._cores.next_end()) is not None:
            self._push(end, SHARED_END, self._version)


def quick_steps(workload: Workload, durations_ns: Sequence[int]) -> list[bool]:
    """Say of each step whether it may run where it became ready."""
    quick_ns = get_hand_over_ns()
    return [ns < quick_ns and step in workload.inline for step, ns in enumerate(durations_ns)]
