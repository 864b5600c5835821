"""Do two shares of a GPU compute at once, and is what is small not held up by what is large?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import plait as pl
import trio
from gpu.question import Row, answer
from gpu.target import Target, Unsuitable
from measure import quantiles
from plait.devices import Device
from plait.graph.core.ir import Graph

OVERLAPPED = 1.25
"""How much longer two halves may take at once than the longer one alone: clocks, power and memory
are those of the whole GPU."""
WARM = 3
ONE = np.ones(1, np.float32)


class Branch(NamedTuple):
    """Work that takes one device some milliseconds, and hardly a byte to copy."""

    name: str
    side: int
    products: int


def branches(*chosen: Branch) -> Graph:
    """Return products of large matrices that follow from one number, branch by branch."""
    b = pl.GraphBuilder("branches")
    for name, side, products in chosen:
        x = b.input(f"{name}/x", "float32", (1,)) * np.float32(1 / side)  # products stay as large
        h = large = b.op("Expand", x, [side, side], name=f"{name}/large")
        for number in range(products):
            h = b.op("MatMul", h, large, name=f"{name}/{number}")
        b.output(f"{name}/y", b.op("ReduceMax", h, name=f"{name}/max", keepdims=False))
    return b.build()


def halves(target: Target) -> Iterator[Row]:
    """Compute two branches on a half each: alone, and at once."""
    first, second = _shares(target, "0-50", "50-100")
    side, count, rounds = target.size((2048, 8, 15), (8, 2, 1))
    a, b = (Branch(name, side, count) for name in "ab")
    alone = [
        _seconds([first], branches(a), {}, rounds),
        _seconds([second], branches(b), {}, rounds),
    ]
    pins = {"a/*": first.name, "b/*": second.name}
    both = _seconds([first, second], branches(a, b), pins, rounds)
    whole = _seconds([target.make()], branches(a, b), {}, rounds)
    for name, seconds in zip(("the first half", "the second half"), alone, strict=True):
        yield Row(f"a branch of products on {name}, alone", seconds * 1e3, "ms")
    yield Row("a branch on each half, at once", both * 1e3, "ms")
    ratio = both / max(alone)
    yield Row("at once, times as long as the longer one alone", ratio, at_most=OVERLAPPED)
    yield Row("both branches on the whole GPU", whole * 1e3, "ms")


def small_beside_large(target: Target) -> Iterator[Row]:
    """Run small items while large ones keep the GPU busy."""
    side, products, count = target.size((2048, 8, 200), (8, 1, 2))
    large, small = Branch("large", side, products), Branch("small", target.size(256, 8), 2)
    ways: dict[str, Callable[[], Sequence[Device]]] = {
        "on shares of 75 % and 25 %": lambda: _shares(target, "0-75", "75-100"),
        "both on the whole GPU": lambda: (target.make(), target.make()),
    }
    for way, make in ways.items():
        busy, other = (
            pl.plan(branches(branch), [device], max_in_flight=2)
            for branch, device in zip((large, small), make(), strict=True)
        )
        taken = quantiles(trio.run(_beside, busy, other, count))
        yield Row(f"a small item beside large ones, {way}: p50", taken["p50"] * 1e6, "µs")
        yield Row(f"a small item beside large ones, {way}: p99", taken["p99"] * 1e6, "µs")


def _shares(target: Target, *ranges: str) -> list[Device]:
    if target.make_share is None:
        raise Unsuitable("asked of CUDA devices")
    devices = [target.make_share(each) for each in ranges]
    try:
        _ = [device.capabilities for device in devices]
    except pl.DeviceUnavailableError as error:
        raise Unsuitable(error.what) from None
    return devices


def _seconds(devices: Sequence[Device], graph: Graph, pins: dict[str, str], rounds: int) -> float:
    """Return how long an item takes, which is alone."""
    taken = []
    with pl.BlockingSession(pl.plan(graph, devices, pin=pins)) as session:
        feeds = dict.fromkeys(graph.inputs, ONE)
        for _ in range(WARM + rounds):
            start = time.perf_counter()
            session.run(feeds)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken[WARM:])


async def _beside(large: pl.Plan, small: pl.Plan, count: int) -> list[float]:
    """Return what each of some small items took while a stream of large ones went on."""
    taken = []
    feeds = dict.fromkeys(small.graph.inputs, ONE)
    async with pl.Session(large) as first, pl.Session(small) as second, trio.open_nursery() as side:
        started = trio.Event()

        async def keep_busy() -> None:
            fed = dict.fromkeys(large.graph.inputs, ONE)
            async with first.stream(repeat(fed)) as results:
                async for _ in results:
                    started.set()

        await second.run(feeds)
        side.start_soon(keep_busy)
        await started.wait()
        for _ in range(WARM + count):
            start = time.perf_counter()
            await second.run(feeds)
            taken.append(time.perf_counter() - start)
        side.cancel_scope.cancel()
    return taken[WARM:]


if __name__ == "__main__":
    answer(halves, small_beside_large)
