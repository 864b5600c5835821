"""What do faults cost, how long does a lost worker hold up a stream, and cancelling a caller?

Faults: 10,000 items through a chain of Python functions in one session, of which 1 % raise and 1 %,
on a stream of their own beside the others, miss their deadline and are stopped on the way; against
the same items without a fault, in turns. Checked: every healthy item is delivered, in order, bit
for bit. Goal: at most 3 % of throughput lost.

Loss: the worker of a stream is killed with SIGKILL at random moments, 200 times in one session.
Checked: no item lost, none doubled, order kept. Time from the loss being noticed until the next
item is done. Goal: at most 100 ms.

Cancelling: a run of 20 nodes that take 2 ms each is cancelled at random moments, on this process's
lane and on a worker. Time until the caller has control again, beyond one node. Goal: at most 1 ms.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import quantiles, save
from plait.devices.worker.device import WorkerDevice
from plait.scheduler.runtime.events import DeviceLost, DeviceRestored, ItemDone, SessionEvent

ITEMS = 10_000
ROUNDS = 7
TRIALS = 200
CANCELS = 50
SLOW_NODES, SLOW_S = 20, 0.002
NODES = 8
TOO_SHORT_S = 5e-5
LONG_S = 10.0
GOOD, BAD = 0, 1
Array = np.ndarray[Any, Any]


@pl.operator(name="bench.work")
def work(x: Array) -> Array:
    """Compute for some 20 µs, or raise."""
    if x[0] == BAD:
        raise ValueError("a bad item")
    y = x
    for _ in range(10):
        y = np.tanh(x)
    y[0] = x[0]
    return y


@pl.operator(name="bench.slow")
def slow(x: Array) -> Array:
    """Take 2 ms, without the processor."""
    time.sleep(SLOW_S)
    return x


def chain() -> pl.Plan:
    builder = pl.GraphBuilder("chain")
    tensor = builder.input("x", "float32", (256,))
    for _ in range(NODES):
        tensor = builder.call(work, tensor)
    builder.output("y", tensor)
    return pl.plan(builder.build(), ["cpu"], max_in_flight=4)


def item(number: int, kind: int = GOOD) -> dict[str, Array]:
    x = np.full(256, (number % 1000) / 1000, np.float32)
    x[0] = kind
    return {"x": x}


Outputs = list[bytes | None]


class Run:
    """One turn: the stream, and beside it one of an item for each hundred."""

    def __init__(self, session: pl.Session, count: int, bad: set[int], beside_s: float) -> None:
        self._session = session
        self._numbers = range(count - count // 100)
        self._bad = bad
        self._beside_s = beside_s
        self._send, self._receive = trio.open_memory_channel[dict[str, Array]](count)
        self.outputs: Outputs = []
        self.late = 0

    async def __call__(self) -> tuple[float, float]:
        """Return the seconds until both streams have ended, and those of all threads' work."""
        start, worked = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beside)
            async with self._send:
                await self._main()
        return time.perf_counter() - start, time.process_time() - worked

    async def _main(self) -> None:
        source = (item(number, BAD if number in self._bad else GOOD) for number in self._numbers)
        async with self._session.stream(source, deadline_s=LONG_S) as results:
            async for found in results:
                if len(self.outputs) % 99 == 0:
                    self._send.send_nowait(item(0))
                self.outputs.append(found["y"].tobytes() if found.error is None else None)

    async def _beside(self) -> None:
        async with self._session.stream(self._receive, deadline_s=self._beside_s) as results:
            async for found in results:
                self.late += isinstance(found.error, pl.DeadlineError)


async def faults(count: int, rounds: int) -> dict[str, Any]:
    healthy_s: list[tuple[float, float]] = []
    faulty_s: list[tuple[float, float]] = []
    late: list[int] = []
    async with pl.Session(chain()) as session:
        await Run(session, 200, set(), LONG_S)()
        for turn in range(rounds):
            bad = set(random.Random(turn).sample(range(count - count // 100), count // 100))
            healthy = Run(session, count, set(), LONG_S)
            healthy_s.append(await healthy())
            faulty = Run(session, count, bad, TOO_SHORT_S)
            faulty_s.append(await faulty())
            check(healthy.outputs, faulty.outputs, bad)
            late.append(faulty.late)
    wall, work = (
        [1 - good[i] / bad[i] for good, bad in zip(healthy_s, faulty_s, strict=True)]
        for i in range(2)
    )
    return {
        "items": count,
        "healthy_items_per_s": count / statistics.median(wall_s for wall_s, _ in healthy_s),
        "faulty_items_per_s": count / statistics.median(wall_s for wall_s, _ in faulty_s),
        "throughput_lost": statistics.median(wall),
        "processor_time_lost": statistics.median(work),
        "deadlines_missed": statistics.median(late),
    }


def check(healthy: Outputs, faulty: Outputs, bad: set[int]) -> None:
    """Compare what came out, item by item."""
    assert None not in healthy, "a healthy item failed"
    expected = [None if number in bad else output for number, output in enumerate(healthy)]
    assert faulty == expected, "an item was lost, doubled, displaced or changed"


def halves(worker: WorkerDevice) -> pl.Plan:
    builder = pl.GraphBuilder("halves")
    h = builder.op("Tanh", builder.input("x", "float32", (4096,)), name="first")
    builder.output("y", builder.op("Add", h, h, name="second"))
    pins = {"first": "worker:0", "second": "cpu"}
    return pl.plan(builder.build(), [worker, "cpu"], pin=pins, max_in_flight=4)


class Watcher:
    """Notes when the worker was lost, when the next item was done, and when it was back."""

    def __init__(self) -> None:
        self.lost_s = 0.0
        self.resumed_s = 0.0
        self.back = trio.Event()

    def __call__(self, event: SessionEvent) -> None:
        """Take note of an event."""
        if isinstance(event, DeviceLost):
            self.lost_s, self.resumed_s = time.perf_counter(), 0.0
        elif isinstance(event, ItemDone) and self.lost_s and not self.resumed_s:
            self.resumed_s = time.perf_counter()
        elif isinstance(event, DeviceRestored):
            self.back.set()


async def loss(trials: int) -> dict[str, Any]:
    worker, watcher = WorkerDevice("worker:0"), Watcher()
    rng, resumed_ms, back_ms = random.Random(0), list[float](), list[float]()
    async with pl.Session(halves(worker), on_event=watcher) as session:
        for _ in range(trials):
            watcher.back, watcher.lost_s = trio.Event(), 0.0
            assert worker.pid is not None
            killer = threading.Timer(rng.uniform(0, 0.02), _kill, [worker.pid])
            await _stream_until_lost(session, watcher, killer)
            resumed_ms.append((watcher.resumed_s - watcher.lost_s) * 1e3)
            await watcher.back.wait()
            back_ms.append((time.perf_counter() - watcher.lost_s) * 1e3)
    return {
        "trials": trials,
        "resumed_after_ms": {**quantiles(resumed_ms), "max": max(resumed_ms)},
        "worker_back_after_ms": {**quantiles(back_ms), "max": max(back_ms)},
    }


async def _stream_until_lost(
    session: pl.Session, watcher: Watcher, killer: threading.Timer
) -> None:
    """Stream until some items have passed after the loss; check every one."""
    given = 0

    def source() -> Iterator[dict[str, Array]]:
        nonlocal given
        left = 20
        while left:
            left -= bool(watcher.resumed_s and watcher.lost_s)
            given += 1
            yield {"x": np.full(4096, given / 1e4, np.float32)}

    killer.start()
    taken = 0
    async with session.stream(source()) as results:
        async for item in results:
            taken += 1
            half = np.tanh(np.full(4096, taken / 1e4, np.float32))
            assert np.array_equal(item["y"], half + half), f"item {taken} is another, or wrong"
    killer.join()
    assert taken == given, f"{given} items were given, {taken} came out"


async def cancelling(device: str, cancels: int) -> dict[str, float]:
    """Return quantiles of the ms that a cancelled run takes to return, beyond one node."""
    builder = pl.GraphBuilder("slow")
    tensor = builder.input("x", "float32", (4,))
    for _ in range(SLOW_NODES):
        tensor = builder.call(slow, tensor)
    builder.output("y", tensor)
    rng, beyond_ms = random.Random(0), list[float]()
    async with pl.Session(pl.plan(builder.build(), [device])) as session:
        for _ in range(cancels):
            with trio.move_on_after(rng.uniform(0.2, 0.8) * SLOW_NODES * SLOW_S) as scope:
                await session.run({"x": np.zeros(4, np.float32)})
            assert scope.cancelled_caught
            waited_s = trio.current_time() - scope.deadline
            beyond_ms.append(max(0.0, waited_s - SLOW_S) * 1e3)
    return {**quantiles(beyond_ms), "max": max(beyond_ms)}


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--cancels", type=int, default=CANCELS)
    arguments = parser.parse_args()
    figures = {
        "faults": trio.run(faults, arguments.items, arguments.rounds),
        "loss": trio.run(loss, arguments.trials),
        "cancel_beyond_node_ms": {
            device: trio.run(cancelling, device, arguments.cancels)
            for device in ("cpu", "worker:0")
        },
    }
    save("faults", figures)


if __name__ == "__main__":
    main()
