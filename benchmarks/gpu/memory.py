"""Is the memory that a plan says it takes what sessions take of the GPU, and is that all of it?

What is free before and after: sessions of real models are opened and run with several items in
flight. The context, and what libraries load with it, are there before. Goal: within 1 %, or the
2 MiB that the driver rounds each allocation to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import plait as pl
import trio
from gpu.models import IN_FLIGHT, chosen
from gpu.question import Row, answer
from gpu.target import Target
from plait.graph.tensor import Array

MIB = 1 << 20
GRANULE = 2 * MIB
CLOSE = 0.01
ITEMS = 200


def sessions(target: Target) -> Iterator[Row]:
    """Sessions of real models, planned and used."""
    runtime = target.cupy().cuda.runtime
    with target.opened() as device:
        for name, model in chosen(target).items():
            feeds = model.feeds(model.batches[-1])
            shapes = {each: value.shape for each, value in feeds.items()}
            plan = pl.plan(
                pl.load(model.path()),
                [device, "cpu"],
                shapes=shapes,
                strategy="preference",
                max_in_flight=IN_FLIGHT,
            )
            for turn in ("opened first", "opened again"):  # libraries load code when it is used
                rows = trio.run(_used, plan, device.name, feeds, lambda: runtime.memGetInfo()[0])
                if turn == "opened first":
                    yield Row(f"{name}: used, {turn}", rows[1].value, "MiB")
            yield from (_named(name, row) for row in rows)


def _named(name: str, row: Row) -> Row:
    return Row(**{**row.__dict__, "what": f"{name}: {row.what}"})


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
