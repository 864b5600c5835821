"""A stream that goes to and fro between devices, with buffers that items in flight take in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plait as pl
import trio
from plait.graph.values.tensor import Array

LENGTH = 1 << 18
TURNS = 6


def plan_to_and_fro(names: Sequence[str]) -> pl.Plan:
    """Return a plan of sums and products, each on the next of the devices."""
    builder = pl.GraphBuilder("to and fro")
    h = x = builder.input("x", "int32", (LENGTH,))
    for turn in range(TURNS):
        h = builder.op("Add", h, builder.op("Mul", h, x, name=f"mul{turn}"), name=f"add{turn}")
    builder.output("y", h)
    pins = {f"*{turn}": names[turn % len(names)] for turn in range(TURNS)}
    return pl.plan(builder.build(), names, pin=pins, max_in_flight=4)


def check_stream(plan: pl.Plan) -> None:
    """Assert that a stream of items has the results of the cpu, in order."""
    assert plan.source is not None
    feeds = [{"x": np.arange(LENGTH, dtype=np.int32) * (item + 3)} for item in range(24)]

    async def stream() -> list[Array]:
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            return [item["y"] async for item in results]

    for fed, found in zip(feeds, trio.run(stream), strict=True):
        np.testing.assert_array_equal(found, pl.run(plan.source, fed, ["cpu"])["y"])
