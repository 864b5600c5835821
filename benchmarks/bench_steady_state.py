"""Does a stream allocate or grow, once it runs?

Tensors: while some hundreds of items of 4 MB tensors go through, Python's own record of memory
(tracemalloc, which numpy tells of every array, on all threads) may not rise by as much as half a
tensor, with results handed out as views; with copies, by no more than those of the items in flight
and of the last one. Everything that is not planned ahead would show, temporaries of kernels too.

Memory: the resident set of this process and its workers over 100,000 items, as the slope of a line
through 100 readings, after a warm-up in which the profile, which keeps the latest items, has filled
up. Once with one shape, on `cpu` alone, on two lanes and on `cpu` and a worker; with random shapes;
with a consumer, and with a source, that pauses. Random shapes of more kinds than a session keeps
plans for make it plan again and again: fewer items then. Within declared bounds there is one plan
for all of them.

Shapes never seen: how long the first item of a shape takes, within bounds and without.

Baseline: none; what others lose is on record (OpenVINO issue 20633, ONNX Runtime issue 22297).
Goals: no tensor allocated, less than 1 KiB for 1,000 items.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save
from plait.graph.values.tensor import Array
from quiet import Watch

ITEMS, WARM_UP, READINGS = 100_000, 30_000, 100
TENSOR = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
GOALS = {"tensors allocated": 0, "bytes for 1,000 items, less than": 1024}
KEPT, MANY = 8, 200
"""Kinds of shapes: as many as a session keeps plans for, and far more."""


def planned(devices: list[str], *shape: int | str, most: int | None = None) -> pl.Plan:
    """Return a plan of two steps, with the second one on the last device.

    With `most`, for all lengths up to that.
    """
    b = pl.GraphBuilder("steady")
    h = b.op("Relu", b.input("x", "float32", shape), name="first")
    b.output("y", b.op("Add", h, b.op("Exp", h, name="exp"), name="second"))
    pins = {"exp": devices[-1], "second": devices[-1]}
    bounds = None if most is None else {"n": most}
    return pl.plan(b.build(), devices, pin=pins, bounds=bounds, max_in_flight=len(devices) + 1)


@dataclass(frozen=True)
class Load:
    """What is streamed.

    Attributes
    ----------
    lengths : sequence of int
        Of which each item has one, at random.
    pause_source_s, pause_consumer_s : float
        Slept before every hundredth item.
    share : float
        Of the items: fewer where they take long.
    trace : bool
        Keep a profile; not where there are too few items to fill it up.
    bounded : bool
        Plan once, for all lengths up to the largest.
    """

    devices: tuple[str, ...]
    lengths: range = range(16, 17)
    pause_source_s: float = 0
    pause_consumer_s: float = 0
    share: float = 1
    trace: bool = True
    bounded: bool = False

    def plan(self) -> pl.Plan:
        """Plan for one shape, or for any."""
        most = max(self.lengths) if self.bounded else None
        return planned([*self.devices], 16 if len(self.lengths) == 1 else "n", most=most)

    async def items(self, count: int) -> Any:
        """Give items, pausing now and then."""
        for index, inputs in enumerate(self._feeds(count)):
            if self.pause_source_s and index % 100 == 0:
                await trio.sleep(self.pause_source_s)
            yield inputs

    def _feeds(self, count: int) -> Iterator[Mapping[str, Array]]:
        feeds = [{"x": np.zeros(length, np.float32)} for length in self.lengths]
        random = np.random.default_rng(0)
        for _ in range(count):
            yield feeds[random.integers(len(feeds))]


LOADS = {
    "cpu": Load(("cpu",)),
    "two lanes": Load(("cpu", "cpu:1")),
    "cpu and a worker": Load(("cpu", "worker:0")),
    f"{KEPT} shapes at random": Load(("cpu", "cpu:1"), range(1, 1 + KEPT)),
    f"{MANY} shapes at random": Load(("cpu", "cpu:1"), range(1, 1 + MANY), share=0.02, trace=False),
    f"{MANY} shapes at random within bounds": Load(
        ("cpu", "cpu:1"), range(1, 1 + MANY), bounded=True
    ),
    "slow consumer": Load(("cpu", "cpu:1"), pause_consumer_s=0.02, share=0.3),
    "slow source": Load(("cpu", "cpu:1"), pause_source_s=0.02, share=0.3),
}


async def growth(load: Load, items: int, warm_up: int) -> dict[str, float]:
    """Return by how much memory grows, after the warm-up."""
    items = int(items * load.share)
    every = max(1, items // READINGS)
    seen: list[int] = []
    resident: list[int] = []
    start = 0.0
    async with pl.Session(load.plan(), trace=load.trace) as session:
        warm_up = warm_up if load.trace else items
        async with session.stream(load.items(warm_up + items)) as results:
            async for item in results:
                index = item.index - warm_up
                if index == 0:
                    gc.collect()
                    start = perf_counter()
                if index >= 0 and index % every == 0:
                    seen.append(index)
                    resident.append(resident_bytes())
                if load.pause_consumer_s and index % 100 == 0:
                    await trio.sleep(load.pause_consumer_s)
        seconds = perf_counter() - start
    return {
        "items": items,
        "bytes_per_1000_items": float(np.polyfit(seen, resident, 1)[0]) * 1000,
        "resident_MiB": resident[-1] / 2**20,
        "item_us": seconds / items * 1e6,
    }


def resident_bytes() -> int:
    """Return what this process and its children have in memory."""
    listings = Path("/proc/self/task").glob("*/children")
    children = [pid for file in listings for pid in file.read_text().split()]
    readings = [Path(f"/proc/{pid}/statm").read_text() for pid in ("self", *children)]
    return sum(int(reading.split()[1]) for reading in readings) * PAGE


async def allocations(items: int, *, copy: bool, kinds: int = 1) -> dict[str, float]:
    """Return by how much the record of memory rises, in tensors, while items go through.

    Of so many kinds of shapes, the largest in turn with the others.
    """
    devices = ["cpu", "cpu:1"]
    plan = planned(devices, "n", most=TENSOR) if kinds > 1 else planned(devices, TENSOR)
    inputs = {"x": np.zeros(TENSOR, np.float32)}
    feeds = [{"x": inputs["x"][: TENSOR - kind * 1000]} for kind in range(kinds)]
    async with pl.Session(plan) as session:

        async def stream(count: int) -> None:
            source = (feeds[index % kinds] for index in range(count))
            async with session.stream(source, copy=copy) as results:
                async for _ in results:
                    pass

        await stream(20 * kinds)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await stream(items)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
    return {"items": items, "rise_in_tensors": peak / inputs["x"].nbytes}


async def first_items(*, bounded: bool) -> float:
    """Return the milliseconds that the first item of a shape takes, the median of many shapes."""
    plan = planned(["cpu", "cpu:1"], "n", most=MANY if bounded else None)
    seconds = []
    async with pl.Session(plan) as session:
        await session.run({"x": np.zeros(MANY, np.float32)})
        for length in range(1, MANY, 4):
            inputs = {"x": np.zeros(length, np.float32)}
            start = perf_counter()
            await session.run(inputs)
            seconds.append(perf_counter() - start)
    return statistics.median(seconds) * 1e3


def main() -> None:
    items = int(sys.argv[1]) if len(sys.argv) > 1 else ITEMS
    warm_up = WARM_UP if items == ITEMS else items
    watch = Watch()
    # Before the others, which leave the allocator with more than items need.
    growths = {name: trio.run(growth, load, items, warm_up) for name, load in LOADS.items()}
    figures = {
        "goals": GOALS,
        "allocated, results as views": trio.run(lambda: allocations(items // 300, copy=False)),
        "allocated, results copied": trio.run(lambda: allocations(items // 300, copy=True)),
        "allocated, random shapes within bounds": trio.run(
            lambda: allocations(items // 300, copy=False, kinds=7)
        ),
        "growth": growths,
        "first item of a shape, ms": {
            "within bounds": trio.run(lambda: first_items(bounded=True)),
            "planned anew": trio.run(lambda: first_items(bounded=False)),
        },
        "disturbance": watch.disturbance(),
    }
    save("steady_state", figures)


if __name__ == "__main__":
    main()
