"""No tensor is copied to where it is, nor twice to the same memory: there are no round trips."""

from __future__ import annotations

from collections.abc import Sequence

import plait as pl
import pytest
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.device import Device
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.graph.core.ir import Graph
from plait.scheduler.plans.placement import Transfer
from random_graphs import graphs


def _near() -> list[Device | str]:
    """Return devices of which two copy from one another."""
    clock = VirtualClock()
    peers = {"sim:a": frozenset({"sim:b"}), "sim:b": frozenset({"sim:a"})}
    models = {name: SimModel(peers=near) for name, near in peers.items()}
    return [*(SimDevice(name, model, clock) for name, model in models.items()), "cpu"]


MACHINES: dict[str, Sequence[Device | str]] = {
    "two far from the host": [PrivateDevice("a"), PrivateDevice("b"), "cpu"],
    "one in shared memory": [PrivateDevice("a"), "worker:0", "cpu"],
    "two near each other": _near(),
}


@pytest.mark.parametrize("machine", MACHINES)
@given(graph=graphs(), choices=st.lists(st.integers(0, 2), min_size=14, max_size=14))
@settings(max_examples=10, deadline=None)
def test_every_transfer_brings_what_was_not_there(
    machine: str, graph: Graph, choices: list[int]
) -> None:
    devices = MACHINES[machine]
    names = [one if isinstance(one, str) else one.name for one in devices]
    pins = {n.name: names[choice] for n, choice in zip(graph.nodes, choices, strict=False)}
    plan = pl.plan(graph, devices, pin=pins, passes=())
    assert plan.placement is not None
    home = plan.placement.home
    there = {tensor: {memory} for tensor, memory in home.items()}
    for step in plan.steps:
        if isinstance(step.work, Transfer):
            tensor, source, target = step.work.tensor, step.work.source, step.work.target
            assert source in there[tensor]
            assert target not in there[tensor]
            there[tensor].add(target)


def test_a_tensor_that_comes_back_in_another_form_leaves_once() -> None:
    b = pl.GraphBuilder("back")
    h = b.op("Neg", b.input("x", "float32", (4,)), name="near")
    far = b.op("Exp", h, name="far")
    b.output("y", b.op("Add", h, far, name="again"))
    b.output("z", b.op("Sub", far, h, name="far again"))
    devices = [PrivateDevice("a"), PrivateDevice("b")]
    pins = {"near": "a", "far": "b", "again": "a", "far again": "b"}
    plan = pl.plan(b.build(), devices, pin=pins)
    moved = [step.work for step in plan.steps if isinstance(step.work, Transfer)]
    ways = [(one.source, one.target) for one in moved if one.tensor == h]
    assert ways == [("memory of a", "host"), ("host", "memory of b")]
