"""What does a function on a GPU's arrays cost in a process of its own, and how soon is it back?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import trio
from gpu.functions import halve_on_gpu, halve_on_host
from gpu.loaded import WAIT_S, Loaded, floats, loaded
from gpu.question import Row, answer, fact
from gpu.target import Target
from plait.devices.cuda.worker import CudaWorkerDevice
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph

CELLS = {"4 KiB": 1 << 10, "64 MiB": 1 << 24}
WARM = 5


def opening(target: Target) -> Iterator[Row]:
    """How long it takes to start the process, with CuPy and a context of its own."""
    target.cupy()
    device = CudaWorkerDevice(f"worker:{target.name}")
    start = time.perf_counter()
    device.open()
    yield Row(f"opening {device.name}", time.perf_counter() - start, "s")
    device.close()


def calls(target: Target) -> Iterator[Row]:
    """A call in the process, beside the same function of CuPy's in this one."""
    cupy = target.cupy()
    device = CudaWorkerDevice(f"worker:{target.name}")
    device.open()
    for name, cells in CELLS.items():
        x = floats(target.size(cells, 64))
        with loaded(device, calling(halve_on_gpu, x.size)) as one:
            one.run({"x": x})
            there = _median(partial(_call, one), target)
        source = cupy.asarray(x)
        room = cupy.empty_like(source)
        here = _median(partial(_compute, cupy, source, room), target)
        yield Row(f"a function of {name}: in a process of its own", there * 1e6, "us")
        yield Row(f"a function of {name}: CuPy in this process", here * 1e6, "us")
        yield Row(f"a function of {name}: what the process adds", (there - here) * 1e6, "us")
    device.close()


def items(target: Target) -> Iterator[Row]:
    """Tensors between two kernels: with the function on the GPU, and with it on the host."""
    target.cupy()
    constant = floats(target.size(CELLS["64 MiB"], 64))
    found = {}
    workers = CudaWorkerDevice(f"worker:{target.name}"), WorkerDevice("worker:0")
    for worker, function in zip(workers, (halve_on_gpu, halve_on_host), strict=True):
        where = worker.name
        pins = {"call": where, "*": target.name}
        plan = pl.plan(between(function, constant), [target.make(), worker, "cpu"], pin=pins)
        found[where], result = trio.run(_run, plan, target.size(20, 2))
        right = np.array_equal(result, -0.5 * (constant[:16] + 1))
        yield Row(f"a tensor of 64 MiB by way of {where}", found[where] * 1e3, "ms")
        yield fact(f"by way of {where}: the results are right", right, True)
    on_gpu, on_host = found.values()
    yield Row("times as fast as by way of the host", on_host / on_gpu, "x", at_least=1)


def calling(function: Callable[..., Any], cells: int) -> Graph:
    b = pl.GraphBuilder("calling")
    b.output("y", b.call(function, b.input("x", "float32", (cells,)), name="call"))
    return b.build()


def between(function: Callable[..., Any], constant: Any) -> Graph:
    """Return y = -function(x + constant)[:16], so that little is uploaded and downloaded."""
    b = pl.GraphBuilder("between")
    h = b.op("Add", b.input("x", "float32", (1,)), b.constant(constant))
    b.output("y", b.op("Neg", b.call(function, h, name="call"))[:16])
    return b.build()


def _call(one: Loaded) -> None:
    one.submit().wait(WAIT_S)


def _compute(cupy: Any, source: Any, room: Any) -> None:
    room[...] = source * source.dtype.type(0.5)
    cupy.cuda.runtime.deviceSynchronize()


def _median(call: Callable[[], object], target: Target) -> float:
    spent = []
    for _ in range(WARM + target.size(200, 3)):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[WARM:])


async def _run(plan: pl.Plan, rounds: int) -> tuple[float, Any]:
    """Return the median seconds of an item of one, and the last result."""
    spent, x = [], np.ones(1, np.float32)
    async with pl.Session(plan) as session:
        for _ in range(WARM + rounds):
            start = time.perf_counter()
            result = (await session.run({"x": x}))["y"]
            spent.append(time.perf_counter() - start)
    return statistics.median(spent[WARM:]), result


if __name__ == "__main__":
    answer(opening, calls, items)
