"""Do a stage on the host, upload, kernels and download of a stream of frames run side by side?

The bound is what the busiest of the four needs per frame when one frame at a time goes through.
Goal: at least 0.9 of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import plait as pl
import trio
from gpu.loaded import WAIT_S, floats, loaded
from gpu.question import Row, answer
from gpu.target import Target
from plait.devices import Device
from plait.devices.memory import HOST
from plait.graph.core.ir import Graph
from plait.scheduler.plans.placement import Outline

GOAL = 0.9
IN_FLIGHT = 4
SIDE = 2048
MOST_PRODUCTS = 200

Frame = np.ndarray[Any, Any]


@pl.operator(lambda seed, side: pl.TensorSpec("float32", (side, side)), name="bench.gpu.frame")
def frame(seed: Frame, *, side: int) -> Frame:
    """Return a picture: what a camera and a decoder would do."""
    row = np.linspace(0, 1, side, dtype=np.float32) + seed[0]
    made: Frame = np.multiply.outer(row, row)
    return made


def pipeline(side: int, products: int) -> Graph:
    """Return host, upload, `products` products of matrices, download."""
    b = pl.GraphBuilder("frames")
    last = b.call(frame, b.input("seed", "float32", (1,)), name="host", side=side)
    weights = b.constant(np.eye(side, dtype=np.float32))
    for index in range(products):
        last = b.op("MatMul", last, weights, name=f"product{index}")
    b.output("y", last)
    return b.build()


def frames(target: Target) -> Iterator[Row]:
    """A stream of frames through four stages."""
    side = target.size(SIDE, 16)
    first = trio.run(_alone, _planned(target, side, 4), target.size(5, 1))
    products = round(4 * first["host"] / max(first["compute"], 1e-9))
    products = target.size(min(max(products, 1), MOST_PRODUCTS), 2)
    plan = _planned(target, side, products)
    stages = trio.run(_alone, plan, target.size(15, 2))
    for stage, seconds in stages.items():
        yield Row(f"{stage} alone", seconds * 1e3, "ms a frame")
    seconds = trio.run(_streamed, plan, target.size(60, 4))
    yield Row("streamed", seconds * 1e3, "ms a frame", note=f"{products} products of {side}²")
    yield Row("streamed, of one after the other", seconds / sum(stages.values()), "x")
    yield Row("the bound, of the time", max(stages.values()) / seconds, "x", at_least=GOAL)


def _planned(target: Target, side: int, products: int) -> pl.Plan:
    device = target.make()
    pins = {"host": "cpu", "product*": device.name}
    return pl.plan(pipeline(side, products), [device, "cpu"], pin=pins, max_in_flight=IN_FLIGHT)


async def _alone(plan: pl.Plan, count: int) -> dict[str, float]:
    """Return the seconds of each stage, one frame at a time; kernels one by one, on the GPU."""
    async with pl.Session(plan, measure=True) as session:
        for index in range(count + 1):
            await session.run({"seed": np.full(1, index, np.float32)})
        profile = session.profile()
    spent: dict[str, list[float]] = {}
    for record in profile.records[1:]:  # the first one warms up
        sums = dict.fromkeys(("host", "upload", "compute", "download"), 0.0)
        for span in record.spans():
            sums[_stage(span.step)] += (span.ended_ns - span.started_ns) / 1e9
        for stage, seconds in sums.items():
            spent.setdefault(stage, []).append(seconds)
    return {stage: statistics.median(values) for stage, values in spent.items()}


def _stage(step: Outline) -> str:
    if step.transfer is None:
        return "host" if step.device == "cpu" else "compute"
    return "download" if step.transfer.target == HOST else "upload"


async def _streamed(plan: pl.Plan, count: int) -> float:
    """Return seconds per frame, from the first result to the last."""
    feeds: list[Mapping[str, Any]] = [{"seed": np.full(1, i, np.float32)} for i in range(count)]
    ends = []
    async with (
        pl.Session(plan, trace=False) as session,
        session.stream(feeds, copy=False) as results,
    ):
        async for item in results:
            if item.error is not None:
                raise item.error
            ends.append(time.perf_counter())
    skipped = min(IN_FLIGHT, count - 2)
    return (ends[-1] - ends[skipped]) / (len(ends) - 1 - skipped)


def beside_numpy(target: Target) -> Iterator[Row]:
    """Kernels beside numpy on one and the same thread: about 2 ms each."""
    side = target.size(1024, 8)
    with target.opened() as device:
        once = _product_s(device, side, 1)
        products = target.size(max(1, round(2e-3 / once)), 2)
        gpu_s = _product_s(device, side, products)
        with loaded(device, _products(side, products)) as run:
            x = floats(side, side)
            np.sort(x, axis=None)
            start = time.perf_counter()
            np.sort(x, axis=None)
            per_run = time.perf_counter() - start
            part = x[: max(1, int(side * min(1.0, gpu_s / per_run)))]
            both, alone = [], []
            for _ in range(target.size(15, 2)):
                start = time.perf_counter()
                np.sort(part, axis=None)
                alone.append(time.perf_counter() - start)
                start = time.perf_counter()
                event = run.submit()
                np.sort(part, axis=None)
                event.wait(WAIT_S)
                both.append(time.perf_counter() - start)
    longer = max(gpu_s, statistics.median(alone))
    yield Row("kernels", gpu_s * 1e3, "ms")
    yield Row("numpy", statistics.median(alone) * 1e3, "ms")
    yield Row("both, of the longer one", statistics.median(both) / longer, "x", at_most=1.2)


def _products(side: int, count: int) -> Graph:
    b = pl.GraphBuilder("products")
    last = b.input("x", "float32", (side, side))
    weights = b.constant(np.eye(side, dtype=np.float32))
    for _ in range(count):
        last = b.op("MatMul", last, weights)
    b.output("y", last)
    return b.build()


def _product_s(device: Device, side: int, count: int) -> float:
    with loaded(device, _products(side, count)) as run:
        return run.times(at_least_s=0.02, rounds=3).total_s


if __name__ == "__main__":
    answer(frames, beside_numpy)
