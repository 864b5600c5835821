"""How long after the GPU is done does the coroutine go on? Goal: at most 50 µs at the median.

That is from the end of an item, by the GPU's clock mapped onto the host's, to the coroutine that
has awaited it in an ordinary session. A session that measures takes longer, since it asks for the
times of all steps first. What can be measured without comparing clocks is longer as well: from
submission to the coroutine, less the kernel itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import plait as pl
import trio
from gpu.loaded import Loaded, floats, loaded
from gpu.question import Row, answer
from gpu.target import Target
from measure import quantiles
from plait.devices.device import OnDone
from plait.devices.event import Event
from plait.devices.memory import View
from plait.devices.streams.queues import DOWNLOAD
from plait.graph.core.ir import Graph

GOAL_US = 50
WARM = 20
SURELY_LATER_NS = 20_000
"""An item that ended sooner after its last step was queued may have ended before: by then there was
nothing to wait for. It takes the GPU some µs to begin what is queued, and clocks differ."""
NOT_READY = 600
"""cudaErrorNotReady."""


def one_kernel(size: int) -> Graph:
    b = pl.GraphBuilder("one kernel")
    b.output("y", b.op("Relu", b.input("x", "float32", (size,))))
    return b.build()


def sessions(target: Target) -> Iterator[Row]:
    """Items of a copy, a kernel and a copy of 70 µs each, all on the GPU."""
    device, size, count = target.make(), target.size(1 << 25, 64), target.size(1000, 5)
    plan, x = _staying(target, device, size)
    ends = trio.run(_ends, plan, LastCopies(device), x, count)
    late = late_us(ends)
    row = "from the end of an item on the GPU to the coroutine that awaits it"
    note = f"of {len(ends)} items {len(ends) - len(late)} were over too early"
    if late:
        at_most = GOAL_US if target.has_cupy else None
        yield Row(f"{row}: p50", quantiles(late)["p50"], "µs", at_most=at_most, note=note)
        yield Row(f"{row}: p99", quantiles(late)["p99"], "µs")
    else:
        yield Row(row, note, status="left out")


def measuring(target: Target) -> Iterator[Row]:
    """Items of one kernel of some µs that stay on the GPU, in a session that measures."""
    plan, x = _staying(target, target.make(), target.size(1 << 20, 64))
    late, around = trio.run(_awaited, plan, x, target.size(1000, 5))
    found, row = quantiles(late), "the same in a session that measures"
    yield Row(f"{row}: p50", found["p50"], "µs")
    yield Row(f"{row}: p99", found["p99"], "µs")
    yield Row("an item without copies, without the kernel: p50", quantiles(around)["p50"], "µs")


def _staying(target: Target, device: Any, size: int) -> tuple[pl.Plan, Any]:
    """Return a plan of one kernel and its input, both on the GPU where CuPy makes arrays there."""
    on = target.name
    ends: dict[str, Any] = {"inputs_on": on, "outputs_on": on} if target.has_cupy else {}
    x = target.cupy().zeros(size, "float32") if target.has_cupy else floats(size)
    return pl.plan(one_kernel(size), [device], **ends), x


class End(NamedTuple):
    """When the last copy of an item had been queued and ended, and its coroutine went on; ns."""

    queued_ns: int
    ended_ns: int
    resumed_ns: int


def late_us(ends: Sequence[End]) -> list[float]:
    """Return how late coroutines went on, but for items that may have ended too early to tell."""
    return [
        (end.resumed_ns - end.ended_ns) / 1e3
        for end in ends
        if end.ended_ns - end.queued_ns >= SURELY_LATER_NS
    ]


class LastCopies:
    """Has a device record when it is through with each copy, for one item at a time.

    Sessions know that only if they measure. So an event with timing goes onto the stream for
    downloads, behind what was queued there.
    """

    def __init__(self, device: Any) -> None:
        self._device, self._copy = device, device.copy
        self._events: list[Any] = []
        self._queued_ns = 0
        device.copy = self._copy_and_record

    def _copy_and_record(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        event: Event = self._copy(target, source, waits, on_done)
        queues = self._device._get_open().queues
        with queues.current(DOWNLOAD) as stream:
            self._events.append(queues._backend.record(stream, timed=True))
        self._queued_ns = time.perf_counter_ns()
        return event

    def take(self, resumed_ns: int) -> End:
        """Return when an item has ended whose coroutine has gone on, and forget it."""
        backend = self._device._get_open().queues._backend
        clock, events = backend.timeline, self._events
        backend.synchronize(events[-1])  # it is behind what the session has waited for
        end = End(self._queued_ns, clock.host_ns(clock.anchor, events[-1]), resumed_ns)
        while events:
            backend.recycle(events.pop(), timed=True)
        clock.refresh()
        return end


async def _ends(plan: pl.Plan, copies: LastCopies, x: Any, count: int) -> list[End]:
    async with pl.Session(plan) as session:
        found = []
        for _ in range(WARM + count):
            await session.run({"x": x})
            found.append(copies.take(time.perf_counter_ns()))
    return found[WARM:]


async def _awaited(plan: pl.Plan, x: Any, count: int) -> tuple[list[float], list[float]]:
    """Return µs from the end of an item's last step to the coroutine, and of all but its steps."""
    awaited = []
    async with pl.Session(plan, measure=True) as session:
        for _ in range(WARM + count):
            start_ns = time.perf_counter_ns()
            await session.run({"x": x})
            awaited.append((start_ns, time.perf_counter_ns()))
        records = session.profile().records
    late, around = [], []
    for (start_ns, now_ns), record in list(zip(awaited, records, strict=True))[WARM:]:
        spans = list(record.spans())
        late.append((now_ns - max(span.ended_ns for span in spans)) / 1e3)
        spent_ns = sum(span.ended_ns - span.started_ns for span in spans)
        around.append((now_ns - start_ns - spent_ns) / 1e3)
    return late, around


def programs(target: Target) -> Iterator[Row]:
    """A program of one kernel of some µs, and the coroutine that a thread wakes."""
    graph = one_kernel(target.size(1 << 20, 64))
    with target.opened() as device, loaded(device, graph, measure=True) as run:
        found = trio.run(_resumptions, run, target.size(3000, 5))
    around = quantiles([each.round_us - each.kernel_us for each in found])
    yield Row("launch and wake-up, without the kernel: p50", around["p50"], "µs")
    yield Row("launch and wake-up, without the kernel: p99", around["p99"], "µs")
    yield Row("the kernel: p50", quantiles([each.kernel_us for each in found])["p50"], "µs")
    late, note = quantiles([each.late_us for each in found]), "clocks compared once a second"
    yield Row("from the kernel's end to the coroutine: p50", late["p50"], "µs", note=note)
    yield Row("from the kernel's end to the coroutine: p99", late["p99"], "µs", note=note)


class Resumption(NamedTuple):
    """From submission to the coroutine, the kernel alone, and from its end to the coroutine."""

    round_us: float
    kernel_us: float
    late_us: float


async def _resumptions(run: Loaded, count: int) -> list[Resumption]:
    found = []
    token, task = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()

    def wake(_: Event) -> None:
        token.run_sync_soon(trio.lowlevel.reschedule, task)

    for _ in range(WARM + count):
        start_ns = time.perf_counter_ns()
        event = run.submit(wake)
        await trio.lowlevel.wait_task_rescheduled(_not_now)
        now_ns = time.perf_counter_ns()
        spans = now_ns - start_ns, event.ended_ns - event.started_ns, now_ns - event.ended_ns
        found.append(Resumption(*(span / 1e3 for span in spans)))
    return found[WARM:]


def items(target: Target) -> Iterator[Row]:
    """Items of a session, one at a time: upload, kernel, download."""
    plan = pl.plan(one_kernel(1024), [target.make()])
    found = quantiles(trio.run(_item_us, plan, target.size(3000, 5)))
    yield Row("session.run: copy in, kernel, copy out, p50", found["p50"], "µs")
    yield Row("session.run: copy in, kernel, copy out, p99", found["p99"], "µs")


async def _item_us(plan: pl.Plan, count: int) -> list[float]:
    spent, fed = [], {"x": floats(1024)}
    async with pl.Session(plan) as session:
        for index in range(WARM + count):
            start = time.perf_counter()
            await session.run(fed)
            if index >= WARM:
                spent.append((time.perf_counter() - start) * 1e6)
    return spent


def ways_to_wait(target: Target) -> Iterator[Row]:
    """Ways of learning that a kernel of some µs is over."""
    cupy = target.cupy()
    array = cupy.zeros(1 << 20, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    launch = partial(cupy.add, array, 1, out=array)
    with stream, _waiter() as ask:
        ways: dict[str, Callable[..., Awaitable[None]]] = {
            "an event that sleeps, in a thread": partial(_by_thread, cupy, ask, True),
            "an event that spins, in a thread": partial(_by_thread, cupy, ask, False),
            "launch_host_func": _by_callback,
            "polling eventQuery at each checkpoint": partial(_by_polling, cupy),
        }
        for way, wait in ways.items():
            spent = trio.run(_round_trips, launch, partial(wait, stream), target.size(2000, 5))
            found = quantiles(spent)
            yield Row(f"{way}: p50 from launch to coroutine", found["p50"], "µs")
            yield Row(f"{way}: p99 from launch to coroutine", found["p99"], "µs")


async def _round_trips(
    launch: Callable[[], object], wait: Callable[[], Awaitable[None]], count: int
) -> list[float]:
    spent = []
    for index in range(WARM + count):
        start = time.perf_counter()
        launch()
        await wait()
        if index >= WARM:
            spent.append((time.perf_counter() - start) * 1e6)
    return spent


async def _by_thread(cupy: Any, ask: SimpleQueue[Any], sleeps: bool, stream: Any) -> None:
    event = cupy.cuda.Event(block=sleeps, disable_timing=True)
    event.record(stream)
    ask.put((event.synchronize, _waker()))
    await trio.lowlevel.wait_task_rescheduled(_not_now)


async def _by_callback(stream: Any) -> None:
    stream.launch_host_func(lambda wake: wake(), _waker())
    await trio.lowlevel.wait_task_rescheduled(_not_now)


async def _by_polling(cupy: Any, stream: Any) -> None:
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    while cupy.cuda.runtime.eventQuery(event.ptr) == NOT_READY:
        await trio.lowlevel.checkpoint()


def _waker() -> Callable[[], None]:
    token, task = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()
    return partial(token.run_sync_soon, trio.lowlevel.reschedule, task)


@contextmanager
def _waiter() -> Iterator[SimpleQueue[Any]]:
    """Run a thread that calls pairs of functions one after the other."""
    asked: SimpleQueue[Any] = SimpleQueue()

    def serve() -> None:
        while (pair := asked.get()) is not None:
            for call in pair:
                call()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield asked
    finally:
        asked.put(None)
        thread.join()


def _not_now(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


if __name__ == "__main__":
    answer(sessions, measuring, programs, items, ways_to_wait)
