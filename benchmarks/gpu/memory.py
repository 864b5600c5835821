"""Is the memory that a plan says it takes what sessions take of the GPU, and is that all of it?

What is free before and after: sessions of real models are opened and run with several items in
flight. The context, and what libraries load with it, are there before. Goal: within 1 %, or the
2 MiB that the driver rounds each allocation to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import plait as pl
import trio
from gpu.models import IN_FLIGHT, chosen
from gpu.question import Row, answer
from gpu.target import Target
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.faults.open_devices import close_shared, open_shared

MIB = 1 << 20
GRANULE = 2 * MIB
CLOSE = 0.01
ITEMS = 200


def sessions(target: Target) -> Iterator[Row]:
    """Sessions of real models, planned and used."""
    runtime = target.cupy().cuda.runtime
    device = target.make()

    def free() -> int:
        return int(runtime.memGetInfo()[0])

    start = free()
    open_shared(device, None)  # so that no session's end closes it
    try:
        yield Row("an open device", (start - free()) / MIB, "MiB")
        for name, model in chosen(target).items():
            feeds = model.feeds(model.batches[0])
            shapes = {each: value.shape for each, value in feeds.items()}
            plan = pl.plan(
                pl.load(model.path()),
                [device, "cpu"],
                shapes=shapes,
                strategy="preference",
                max_in_flight=IN_FLIGHT,
            )
            before = free()
            trio.run(_used, plan, device.name, feeds, free)  # libraries load code when it is used
            kept = (before - free()) / MIB
            yield Row(f"{name}: kept when it was open for the first time", kept, "MiB")
            for row in trio.run(_used, plan, device.name, feeds, free):
                yield replace(row, what=f"{name}: {row.what}")
    finally:
        close_shared(device)


async def _used(
    plan: pl.Plan, device: str, feeds: Mapping[str, Array], free: Callable[[], int]
) -> list[Row]:
    """Return what is planned, and what is free before, meanwhile and after."""
    assert plan.memory is not None, "its shapes are numbers"
    regions = [one for one in plan.memory.regions if one.memory == device]
    pool = plan.memory.pools[device]
    planned, allocations = pool.nbytes + pool.constants_nbytes, sum(one.copies for one in regions)
    before = free()
    async with pl.Session(plan) as session:
        await _stream(session, feeds, 2 * IN_FLIGHT)
        opened = free()
        await _stream(session, feeds, ITEMS)
        grown = opened - free()
    used, room = before - opened, max(CLOSE * planned, allocations * GRANULE)
    return [
        Row("planned", planned / MIB, "MiB", note=f"{allocations} allocations"),
        Row("used", used / MIB, "MiB"),
        Row("used, less what is planned", (used - planned) / MIB, "MiB",
            at_least=-room / MIB, at_most=room / MIB),
        Row(f"allocated while {ITEMS} items run", grown, "bytes", at_most=0),
        Row("kept when it is closed", (before - free()) / MIB, "MiB", at_most=GRANULE / MIB),
    ]  # fmt: skip


async def _stream(session: pl.Session, feeds: Mapping[str, Array], count: int) -> None:
    async with session.stream([feeds] * count) as results:
        async for item in results:
            if item.error is not None:
                raise item.error


if __name__ == "__main__":
    answer(sessions)
