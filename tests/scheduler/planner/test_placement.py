from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import plait as pl
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.device import Program
from plait.devices.memory import HOST, SHARED, View
from plait.graph.core.ir import Graph
from plait.scheduler.plans.placement import OUTSIDE, Placement, Transfer
from random_graphs import expected, feeds, graphs


def pair() -> Graph:
    builder = pl.GraphBuilder("pair")
    h = builder.op("Relu", builder.input("x", "float32", (4,)), name="first", outputs=["h"])[0]
    builder.output("y", builder.op("Add", h, 1.0, name="second"))
    return builder.build()


def placement(plan: pl.Plan) -> Placement:
    assert plan.placement is not None
    return plan.placement


def transfers(plan: pl.Plan) -> list[tuple[str, str, str]]:
    works = (step.work for step in plan.steps)
    return [(w.tensor, w.source, w.target) for w in works if isinstance(w, Transfer)]


def test_cpu_and_worker_share_memory_without_transfers() -> None:
    plan = pl.plan(pair(), ["cpu", "worker:0"], pin={"second": "worker:0"})
    assert transfers(plan) == []
    assert placement(plan).home["h"] == "shared"


def test_what_only_the_cpu_touches_stays_in_its_own_memory() -> None:
    plan = pl.plan(pair(), ["cpu", "worker:0"])
    assert set(placement(plan).home.values()) == {"host"}


def test_a_private_memory_is_reached_by_transfers_in_and_out() -> None:
    plan = pl.plan(pair(), [PrivateDevice("npu")])
    inside = "memory of npu"
    assert transfers(plan) == [("x", "host", inside), ("y", inside, "host")]


def test_between_two_private_memories_the_way_goes_through_the_host() -> None:
    plan = pl.plan(
        pair(), [PrivateDevice("a"), PrivateDevice("b")], pin={"first": "a", "second": "b"}
    )
    assert transfers(plan) == [
        ("x", "host", "memory of a"),
        ("h", "memory of a", "host"),
        ("h", "host", "memory of b"),
        ("y", "memory of b", "host"),
    ]


def test_the_owner_of_the_private_memory_does_the_copying() -> None:
    plan = pl.plan(
        pair(), [PrivateDevice("a"), PrivateDevice("b")], pin={"first": "a", "second": "b"}
    )
    movers = [step.device for step in plan.steps if isinstance(step.work, Transfer)]
    assert movers == ["a", "a", "b", "b"]


def test_a_fetched_tensor_and_another_devices_input_share_one_way_out() -> None:
    builder = pl.GraphBuilder("shared")
    h = builder.op("Relu", builder.input("x", "float32", (4,)), name="first")
    builder.output("h", h)
    builder.output("y", builder.op("Add", h, 1.0, name="second"))
    plan = pl.plan(
        builder.build(), [PrivateDevice("a"), "cpu"], pin={"first": "a", "second": "cpu"}
    )
    assert [t for t in transfers(plan) if t[0] == "h"] == [("h", "memory of a", "host")]


def test_a_step_waits_for_the_transfers_of_its_inputs() -> None:
    plan = pl.plan(pair(), [PrivateDevice("npu")])
    copy_in, run, copy_out = plan.steps
    assert run.waits == (copy_in.index,)
    assert run.input_wait_count == 1
    assert copy_out.waits == (run.index,)
    assert copy_in.dependents == (run.index,)


def test_an_input_nobody_reads_can_still_be_fed() -> None:
    builder = pl.GraphBuilder("unread")
    builder.input("unread", "float32", (4,))
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (4,))))
    assert placement(pl.plan(builder.build())).home["unread"] == "host"


def test_results_are_read_where_they_were_computed_if_the_host_reaches_it() -> None:
    plan = pl.plan(pair(), ["worker:0"])
    assert placement(plan).local["y", OUTSIDE] == "shared"


class WatchedDevice(PrivateDevice):
    """Keeps in which memories its kernels were given tensors."""

    def __init__(self, name: str, accesses: frozenset[str]) -> None:
        super().__init__(name)
        self.capabilities = replace(self.capabilities, memory=min(accesses), accesses=accesses)
        self.seen: set[str] = set()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        self.seen.update(view.arena.memory for view in views.values())
        return super().compile(subgraph, views, measure=measure)


@settings(max_examples=30)
@given(graphs(), st.data())
def test_kernels_are_given_tensors_in_memories_that_their_device_accesses(
    graph: Graph, data: st.DataObject
) -> None:
    """Row L24 and `mtype_eq`: what LightNet's operators check, plans have by their making."""
    devices = {
        name: WatchedDevice(name, frozenset(accesses))
        for name, accesses in {
            "private": {"memory of private"},
            "other": {"memory of other"},
            "both": {HOST, SHARED},
            "sharing": {SHARED},
        }.items()
    }
    pins = {node.name: data.draw(st.sampled_from(sorted(devices))) for node in graph.nodes}
    plan = pl.plan(graph, list(devices.values()), pin=pins, passes=())
    for step in plan.steps:
        if isinstance(step.work, Transfer):
            continue
        reached = plan.prototypes[step.device].capabilities.accesses
        where = placement(plan)
        for node in step.work.graph.nodes:
            read = (name for name in node.inputs if name and name not in graph.constants)
            assert {where.local[name, step.device] for name in read} <= reached
            assert {where.home[name] for name in filter(None, node.outputs)} <= reached
    fed = feeds(graph)
    with pl.BlockingSession(plan) as session:
        results = session.run(fed)
    for name, array in expected(graph, fed).items():
        np.testing.assert_array_equal(results[name], array)
    for name, device in devices.items():
        assert device.seen <= device.capabilities.accesses
        assert bool(device.seen) == (name in plan.assignment.values())
