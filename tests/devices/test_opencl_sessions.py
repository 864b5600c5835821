"""Sessions over an OpenCL device, on PoCL, and the cpu."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.opencl.device import OpenClDevice
from plait.devices.opencl.streams import OpenClBackend
from plait.graph.core.ir import Graph
from pocl import pocl_device
from random_graphs import expected, feeds, graphs


@pytest.fixture
def device() -> OpenClDevice:
    """Return a device for a session to open."""
    return OpenClDevice(device=pocl_device())


def alternating(count: int) -> tuple[Graph, dict[str, str]]:
    """Return a chain of nodes, and a pin of every other one to the cpu."""
    b = pl.GraphBuilder("alternating")
    tensor, pin = b.input("x", "float32", (5, 8)), dict[str, str]()
    for number in range(count):
        name = f"node{number}"
        tensor = b.op("Add", tensor, np.full(8, number, np.float32), name=name)
        pin[name] = ("opencl:0", "cpu")[number % 2]
    b.output("y", tensor)
    return b.build(), pin


async def test_a_session_streams_through_the_cpu_and_opencl_in_turn(device: OpenClDevice) -> None:
    graph, pin = alternating(5)
    plan = pl.plan(graph, [device, "cpu"], pin=pin, passes=(), max_in_flight=3)
    assert len(plan.subgraphs) == 5
    rng = np.random.default_rng(0)
    items = [{"x": rng.standard_normal((5, 8), np.float32)} for _ in range(20)]
    async with pl.Session(plan) as session:
        async with session.stream(items, max_in_flight=3) as results:
            found = [item["y"].copy() async for item in results]
    for item, y in zip(items, found, strict=True):
        expected = item["x"]
        for number in range(5):
            expected = expected + np.float32(number)
        np.testing.assert_array_equal(y, expected)


async def test_what_a_session_had_on_a_lost_device_runs_on_the_cpu(
    device: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, pin = alternating(2)
    seen: list[str] = []

    def fail(self: OpenClBackend, event: Any) -> NoReturn:
        event.wait()
        raise RuntimeError("the driver gave up")

    plan = pl.plan(graph, [device, "cpu"], pin=pin, passes=())
    x = np.ones((5, 8), np.float32)
    async with pl.Session(
        plan, on_event=lambda event: seen.append(type(event).__name__)
    ) as session:
        await session.run({"x": x})
        monkeypatch.setattr(OpenClBackend, "synchronize", fail)
        for _ in range(3):
            np.testing.assert_array_equal((await session.run({"x": x}))["y"], x + 1)
    faults = [kind for kind in seen if kind in ("DeviceLost", "ItemReplayed", "PlanReplaced")]
    assert faults == ["DeviceLost", "ItemReplayed", "PlanReplaced"]


@settings(max_examples=12)
@given(graphs(), st.sampled_from([2, 4, 100]))
def test_any_graph_gives_what_numpy_says_however_it_is_split(graph: Graph, every: int) -> None:
    """Over bytes that tensors share, in kernels of many nodes: a mistake of either shows."""
    device = OpenClDevice(device=pocl_device())
    pin = {
        node.name: "cpu" if number % every == every - 1 else device.name
        for number, node in enumerate(graph.nodes)
    }
    plan = pl.plan(graph, [device, "cpu"], pin=pin, passes=())
    inputs = feeds(graph)
    found = pl.run(plan, inputs)
    for name, value in expected(graph, inputs).items():
        np.testing.assert_array_equal(found[name], value)
