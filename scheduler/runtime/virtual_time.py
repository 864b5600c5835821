"""Moves virtual clocks while a session runs; real time passes by itself.

Simulated devices may share a `VirtualClock`. It moves on to the next thing that is due when nothing
else can happen: no task of the trio loop can run, the session has nothing under way on a thread or
on a real device, and the effects of the last move are done. Tasks that the loop
would run in any order go on one by one, by tickets. So the same session gives the same times
always, and unsimulated work takes no time at all. Sessions that share a clock move it each
for themselves; the order among them is then left to chance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar

import trio

from ...devices.device import Device, OnDone
from ...devices.event import Event
from ...devices.sim.clock import VirtualClock, find_virtual_clock
from ..dispatch.hand_over import get_hand_over_ns
from ..errors import raise_error
from .async_calls import Await, await_here
from .loop_inbox import LoopInbox

T = TypeVar("T")

Launch: TypeAlias = Callable[[Sequence[Event], OnDone], Event]
"""Submits a step, given its events to wait for and a callback for its end."""


TURN = 32
"""Hand-overs for which other tasks wait for one that waits for nothing: a turn takes about one."""


class Raised(NamedTuple):
    """The error of a function, until it is taken.

    Objects that an exception's frames refer to live as long: arenas, for one. Trio keeps one
    that leaves a thread in a cycle with its frames, until the next collection.
    """

    errors: list[Exception]


def _catch(function: Callable[[], T]) -> T | Raised:
    try:
        return function()
    except Exception as error:
        return Raised([error])


def take_result(outcome: T | Raised) -> T:
    if isinstance(outcome, Raised):
        raise outcome.errors.pop()
    return outcome


def get_clock(device: Device) -> Callable[[], int]:
    """Return the clock of the events of `device`, in ns."""
    clock = find_virtual_clock(device)
    return time.perf_counter_ns if clock is None else clock.now_ns


class VirtualTimeDriver:
    """Moves the virtual clocks of a session's devices; costs next to nothing if there are none.

    It knows the session's work outside of the loop because that is done through it. Methods are for
    the trio thread, but for `post`, `call` and launches, which are for any. `now_ns` is the clock
    of items. `has_loop_alone` is true if nothing else uses the loop: blocking calls may block it,
    which saves a thread. `awaits` awaits async functions. `context` is a copy of the variables from
    when the session was opened. `on_break` is called on the trio thread with exceptions of plait's
    own; they are raised by default.
    """

    def __init__(self, *, has_loop_alone: bool = False, awaits: Await = await_here) -> None:
        self.has_loop_alone = has_loop_alone
        self.awaits = awaits
        self.now_ns: Callable[[], int] = time.perf_counter_ns
        self._clocks: list[VirtualClock] = []
        self._lock = threading.Lock()
        self._inbox = LoopInbox(self._report_here)
        self._busy = 0
        self._turn_ns = 0
        self._mover: int | None = None
        self._posts: list[Callable[[], object]] = []
        self._tickets = count(1)
        self._holders: list[tuple[int, int, trio.Event]] = []
        self._woken = trio.Event()
        self._ended = trio.Event()
        self._ending = False
        self.on_break: Callable[[BaseException], object] = raise_error

    @property
    def is_virtual(self) -> bool:
        """True when there are clocks to move."""
        return bool(self._clocks)

    def start(self) -> None:
        """Begin; the loop must run."""
        self._inbox.start()
        self.context = copy_context()
        if not self.has_loop_alone:  # for one item it is not worth its while
            self._inbox.open()

    def add(self, device: Device) -> None:
        clock = find_virtual_clock(device)
        if clock is not None and clock not in self._clocks:
            if not self._clocks:
                self.spawn(self._run)
            self._clocks.append(clock)

    def tell_time_of(self, devices: Iterable[Device]) -> None:
        """Time items with the clock of `devices`, if they all have the same."""
        # Times of several clocks cannot be compared: then all is in real time.
        clocks = {get_clock(device) for device in devices}
        if len(clocks) == 1:
            self.now_ns = clocks.pop()

    async def end(self) -> None:
        """Move no clock any more."""
        if self._clocks:
            self._ending = True
            self._woken.set()
            await self._ended.wait()
        await self._inbox.close()

    def wake(self) -> None:
        """Take note that work was submitted on the trio thread."""
        if self._clocks:
            self._woken.set()

    async def checkpoint(self) -> None:
        """Let cancellations through, and other tasks run unless they could lately.

        For where nothing has to be waited for.
        """
        if self._clocks or time.perf_counter_ns() >= self._turn_ns:
            await trio.lowlevel.checkpoint()
            self._turn_ns = time.perf_counter_ns() + TURN * get_hand_over_ns()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    def ticket(self) -> int:
        """Return a ticket for `in_order`, where the lowest goes first."""
        return next(self._tickets)

    async def in_order(self, ticket: int) -> None:
        """Wait, if clocks are virtual, until all tasks wait, none with a lower `ticket`."""
        if self._clocks:
            called = trio.Event()
            heappush(self._holders, (ticket, next(self._tickets), called))
            self._woken.set()
            await called.wait()

    def post(self, function: Callable[[], object]) -> None:
        if threading.get_ident() == self._mover:
            self._posts.append(function)  # first the clock is through with the moment
        else:
            self._inbox.post(function)

    def report(self, error: BaseException) -> None:
        """Break the session for `error`, an exception of plait's own; on any thread."""
        self.post(partial(self._report_here, error))

    def _report_here(self, error: BaseException) -> None:
        self.on_break(error)

    def spawn(
        self,
        function: Callable[..., Awaitable[None]],
        *args: Any,
        name: object = None,
        context: Context | None = None,
    ) -> None:
        """Await `function(*args)` in a task called `name`, in `context`; errors are reported."""
        trio.lowlevel.spawn_system_task(
            self._reporting, function, args, name=name or function, context=context
        )

    async def _reporting(
        self, function: Callable[..., Awaitable[None]], args: Sequence[Any]
    ) -> None:
        try:
            await function(*args)
        except Exception as error:
            self.on_break(error)

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` on the trio thread: now, if this is it."""
        if not self._clocks and trio.lowlevel.in_trio_run():
            function()  # saves a turn of the loop, 20 µs
        else:
            self.post(function)

    async def on_thread(self, function: Callable[[], T]) -> T:
        """Call `function`, which blocks, and return its result; no clock moves meanwhile."""
        return take_result(await self.try_on_thread(function))

    async def try_on_thread(self, function: Callable[[], T]) -> T | Raised:
        """Call `function`, which blocks; return its result or error, for `take_result`."""
        self._begin()
        try:
            return await self._try_aside(function)
        finally:
            self._end()

    async def aside(self, function: Callable[[], T]) -> T:
        """Call `function`, which blocks, on a thread or an idle loop, and return its result."""
        return take_result(await self._try_aside(function))

    async def _try_aside(self, function: Callable[[], T]) -> T | Raised:
        if self.has_loop_alone:
            await trio.lowlevel.checkpoint_if_cancelled()
            return _catch(function)
        try:
            return await trio.to_thread.run_sync(partial(_catch, function))
        except RuntimeError:  # no thread starts while the interpreter ends, since Python 3.12
            return _catch(function)

    def launching(self, device: Device, launch: Launch) -> Launch:
        """Return `launch`, but made to stop virtual clocks while `device` works, if it is real."""
        if not self.is_virtual or find_virtual_clock(device) is not None:
            return launch
        return partial(self._launch, launch)

    def _launch(self, launch: Launch, waits: Sequence[Event], on_done: OnDone) -> Event:
        self._begin()
        try:
            return launch(waits, partial(self._done, on_done))
        except BaseException:
            self._end()
            raise

    def _done(self, on_done: OnDone, event: Event) -> None:
        on_done(event)
        self._end()

    def _begin(self) -> None:
        with self._lock:
            self._busy += 1

    def _end(self) -> None:
        with self._lock:
            self._busy -= 1
            rests = self._busy == 0
        if rests and self._clocks:
            self.post(self.wake)

    async def _run(self) -> None:
        # Imported here: it imports pytest where that is installed, which takes 0.1 s.
        from trio.testing import wait_all_tasks_blocked

        while not self._ending:
            await self._woken.wait()
            self._woken = trio.Event()
            while not self._ending:
                # A task that can run may submit work that is due before the time to which the clock
                # would move.
                await wait_all_tasks_blocked()
                if self._holders:
                    heappop(self._holders)[-1].set()
                elif self._busy or not await self._move():
                    break
        self._ended.set()

    async def _move(self) -> bool:
        """Let due events happen, until one concerns the loop; False if nothing is due."""
        # On a thread: simulated kernels take as long as real ones.
        moved = await trio.to_thread.run_sync(self._run_due)
        posts, self._posts = self._posts, []
        for function in posts:
            function()
        return moved

    def _run_due(self) -> bool:
        moved, self._mover = False, threading.get_ident()
        # No further than to an event for the loop: its reaction may be due before the next event.
        while not (self._posts or self._busy) and any(clock.run_next() for clock in self._clocks):
            moved = True
        self._mover = None
        return moved
