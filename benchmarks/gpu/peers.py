"""How fast are copies from one GPU to the next, and is a chain over both put in one go?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import plait as pl
import trio
from gpu.loaded import floats
from gpu.question import Row, answer
from gpu.target import Target, Unsuitable
from plait.devices import Device
from plait.graph.core.ir import Graph

CELLS = 1 << 24
HANDED, RESULT = "handed on", "y"


def handed_on(cells: int) -> Graph:
    """Return a node for either GPU, the second one reading what the first one makes."""
    b = pl.GraphBuilder("handed on")
    small = b.input("x", "float32", (1,))
    (filled,) = b.op("Expand", small, [cells], name="first", outputs=[HANDED])
    b.output(RESULT, b.op("ReduceMax", filled, name="second", keepdims=False))
    return b.build()


def copies(target: Target) -> Iterator[Row]:
    """Copies from GPU to GPU, as plans make them."""
    first, second = target.make(), _next_to(target)
    cells = target.size(CELLS, 256)
    pins = {"first": first.name, "second": second.name}
    plan = pl.plan(handed_on(cells), [first, second, "cpu"], pin=pins)
    moved = [step.name for step in plan.steps if step.name.startswith(HANDED)]
    yield Row("steps from one GPU to the next", len(moved), at_most=1, note=", ".join(moved))
    seconds = trio.run(_seconds, plan, moved, target.size(20, 2))
    yield Row("from one GPU to the next", 4 * cells / seconds / 1e9, "GB/s")


def _next_to(target: Target) -> Device:
    if target.make_next is None:
        raise Unsuitable("asked of CUDA devices")
    device = target.make_next()
    try:
        _ = device.capabilities
    except pl.DeviceUnavailableError:
        raise Unsuitable("there is one GPU") from None
    return device


async def _seconds(plan: pl.Plan, moved: list[str], rounds: int) -> float:
    """Return what the copies of one item take together, by the GPU's own clock."""
    async with pl.Session(plan, measure=True) as session:
        for _ in range(rounds + 1):
            await session.run({"x": floats(1)})
        records = session.profile().records[1:]  # the first one warms up
    spans = [[span for span in record.spans() if span.step.name in moved] for record in records]
    return statistics.median(
        sum(span.ended_ns - span.started_ns for span in each) / 1e9 for each in spans
    )


if __name__ == "__main__":
    answer(copies)
