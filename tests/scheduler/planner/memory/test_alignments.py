"""Offsets that suit every device, however coarse or fine they ask for them (rows L24)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given
from hypothesis import strategies as st
from plait.devices import registry
from plait.devices.cpu import CpuDevice
from plait.devices.device import MOST_ALIGNMENT, Capabilities, Device
from plait.devices.errors import DeviceError
from plait.graph.core.ir import Graph
from plait.scheduler.costs.measure import measure
from plait.scheduler.planner.memory.verify import verify_memory
from random_graphs import expected, feeds, graphs

POWERS = st.integers(0, 13).map(lambda bits: 1 << bits)


def aligned(device: CpuDevice, alignment: int) -> CpuDevice:
    device.capabilities = replace(device.capabilities, alignment=alignment)
    return device


@given(graphs(max_nodes=8), st.tuples(POWERS, POWERS, POWERS), st.integers(0, 99))
def test_every_offset_suits_the_devices_that_view_it(
    graph: Graph, alignments: tuple[int, int, int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    fresh: list[CpuDevice] = [PrivateDevice("npu"), CpuDevice(), AtomicDevice("whole")]
    devices = [aligned(*pair) for pair in zip(fresh, alignments, strict=True)]
    pins = {node.name: devices[random.integers(3)].name for node in graph.nodes}
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=2)
    verify_memory(plan)
    assert plan.memory is not None
    for location in plan.memory.locations.values():
        for device in devices:
            if location.memory in device.capabilities.accesses | {"host"}:
                assert location.offset % device.capabilities.alignment == 0
    inputs = feeds(graph, seed)
    with pl.BlockingSession(plan) as session:
        for name, value in expected(graph, inputs).items():
            np.testing.assert_array_equal(session.run(inputs)[name], value)


@pytest.mark.parametrize("alignment", [1, 32, 4096])
def test_a_device_of_any_alignment_is_probed_and_measured(alignment: int) -> None:
    def make(name: str) -> Device:
        return aligned(PrivateDevice(name), alignment)

    registry.register("odd", make)
    try:
        assert registry.probe("odd").found
    finally:
        registry.unregister("odd")
    assert measure({"odd": make("odd")}).models["odd"].flops_per_s > 0


@pytest.mark.parametrize("alignment", [0, -64, 48, 96, 3, 2 * MOST_ALIGNMENT, 64.0, "64"])
def test_what_is_no_power_of_two_is_refused_where_the_device_is_made(alignment: object) -> None:
    with pytest.raises(DeviceError, match="a device with memory 'npu'") as caught:
        Capabilities(memory="npu", alignment=alignment)  # type: ignore[arg-type]
    assert repr(alignment) in caught.value.what
    assert "power of two" in (caught.value.fix or "")
