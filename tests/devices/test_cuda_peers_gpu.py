"""Tests that need two GPUs: copies between them arrive, in order, and how fast they are."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
import trio
from plait import devices
from plait.graph.tensor import Array
from plait.scheduler.costs.measure import measure_peers

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

NAMES = "cuda:0", "cuda:1"


@pytest.fixture
def pair() -> None:
    for name in NAMES:
        status = devices.probe(name)
        if not status.found:
            pytest.skip(f"no second CUDA device: {status.reason}")


@pytest.mark.usefixtures("pair")
def test_a_stream_over_two_gpus_is_that_of_the_cpu() -> None:
    """To and fro several times, with buffers that items in flight take in turn."""
    builder = pl.GraphBuilder("to and fro")
    h = x = builder.input("x", "int32", (1 << 18,))
    for turn in range(6):
        h = builder.op("Add", h, builder.op("Mul", h, x, name=f"mul{turn}"), name=f"add{turn}")
    builder.output("y", h)
    graph = builder.build()
    pins = {f"*{turn}": NAMES[turn % 2] for turn in range(6)}
    plan = pl.plan(graph, NAMES, pin=pins, max_in_flight=4)
    feeds = [{"x": np.arange(1 << 18, dtype=np.int32) * (item + 3)} for item in range(24)]

    async def stream() -> list[Array]:
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            return [item["y"] async for item in results]

    for fed, found in zip(feeds, trio.run(stream), strict=True):
        np.testing.assert_array_equal(found, pl.run(graph, fed, ["cpu"])["y"])


@pytest.mark.usefixtures("pair")
def test_copies_between_two_gpus_are_measured() -> None:
    found = measure_peers([devices.find(name) for name in NAMES])
    assert set(found) == {NAMES, NAMES[::-1]}
    assert all(link.bytes_per_s > 1e8 for link in found.values())
