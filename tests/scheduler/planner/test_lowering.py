"""Elementwise chains as one node: which are, where, and what plans and costs make of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice
from plait.devices.device import Chaining
from plait.devices.registry import find
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.operators.fused import FUSED
from plait.scheduler.costs import Costs
from plait.scheduler.planner import lowering
from plait.scheduler.planner.lowering import expand_chains
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.planner.standby import plan_without
from plait.scheduler.plans.plan import Plan

SIZE = 600


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "LEAST_BYTES", 0)
    monkeypatch.setattr(lowering, "LEAST_BETWEEN_BYTES", 0)


def built(make: Callable[[pl.GraphBuilder, str], Any], *shape: int | str) -> Graph:
    b = pl.GraphBuilder("chains")
    b.output("y", make(b, b.input("x", "float32", shape or (SIZE,))))
    return b.build()


def normalised(b: pl.GraphBuilder, x: str) -> Any:
    scaled = b.op("Div", x, np.float32(255), name="scale")
    moved = b.op("Sub", scaled, np.float32(0.5), name="move")
    return b.op("Clip", moved, np.float32(-1), np.float32(1), name="clip")


def planned(graph: Graph, *args: Any, **options: Any) -> Plan:
    return pl.plan(graph, *args, passes=["fuse_chains"], **options)


def groups(plan: Plan) -> list[list[str]]:
    """Return the names of the nodes in each chain."""
    return [
        [inner.name for inner in node.attributes["body"].nodes]
        for node in plan.graph.nodes
        if node.op == FUSED
    ]


def check_runs(plan: Plan, graph: Graph) -> None:
    fed = {
        name: np.random.default_rng(1).standard_normal(graph.tensors[name].static_shape)
        for name in graph.inputs
    }
    fed = {name: array.astype(graph.tensors[name].dtype) for name, array in fed.items()}
    wanted = pl.run(pl.plan(graph, passes=()), fed)
    for name, found in pl.run(plan, fed).items():
        assert found.tobytes() == wanted[name].tobytes()


def test_a_chain_is_one_node_named_as_its_last() -> None:
    graph = built(normalised)
    plan = planned(graph)
    (node,) = plan.graph.nodes
    assert (node.name, node.op, node.outputs) == ("clip", FUSED, ("y",))
    assert groups(plan) == [["scale", "move", "clip"]]
    assert set(plan.graph.tensors) == {"x", "y", *plan.graph.constants}
    check(plan.graph)
    verify_memory(plan)
    check_runs(plan, graph)


def test_plans_tell_of_it_as_of_a_pass() -> None:
    plan = planned(built(normalised))
    (applied,) = plan.applied
    assert (applied.name, applied.before, applied.after) == ("fuse_chains", 3, 1)
    assert applied.removed == ("scale", "move")
    assert "clip: Clip -> Fused" in applied.rewritten
    assert "fuse_chains" in plan.report()


def test_it_can_be_left_out() -> None:
    plan = pl.plan(built(normalised), passes=["-fuse_chains", "-reduce_strength"])
    assert [node.op for node in plan.graph.nodes] == ["Div", "Sub", "Clip"]


@pytest.mark.parametrize(
    ("limit", "nbytes"), [("LEAST_BYTES", 4 * SIZE), ("LEAST_BETWEEN_BYTES", 2 * 4 * SIZE)]
)
def test_what_stays_in_cache_is_left_alone(
    limit: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, limit, nbytes)
    assert len(groups(planned(built(normalised)))) == 1
    monkeypatch.setattr(lowering, limit, nbytes + 1)
    assert groups(planned(built(normalised))) == []


def test_what_others_read_is_written() -> None:
    def make(b: pl.GraphBuilder, x: str) -> Any:
        a = b.op("Exp", b.op("Neg", x, name="neg"), name="exp")
        total = b.op("ReduceSum", a, name="sum", keepdims=False)
        return b.op("Mul", b.op("Neg", a, name="last"), total, name="end")

    plan = planned(built(make))
    assert groups(plan) == [["neg", "exp"], ["last", "end"]]


def test_what_is_fetched_is_written() -> None:
    b = pl.GraphBuilder("two")
    middle = b.op("Neg", b.op("Exp", b.input("x", "float32", (SIZE,)), name="exp"), name="neg")
    b.output("a", middle)
    b.output("y", b.op("Abs", b.op("Relu", middle, name="relu"), name="abs"))
    graph = b.build()
    assert groups(planned(graph)) == [["exp", "neg"], ["relu", "abs"]]
    check_runs(planned(graph), graph)


def test_diamonds_are_chains_too() -> None:
    def make(b: pl.GraphBuilder, x: str) -> Any:
        a = b.op("Neg", x, name="a")
        return b.op("Add", b.op("Exp", a, name="b"), b.op("Tanh", a, name="c"), name="d")

    assert groups(planned(built(make))) == [["a", "b", "c", "d"]]


def test_what_broadcasts_from_a_smaller_tensor_stays_outside() -> None:
    def make(b: pl.GraphBuilder, x: str) -> Any:
        small = b.op("Exp", b.op("ReduceMax", x, np.array([1]), name="max"), name="small")
        return b.op("Relu", b.op("Sub", x, small, name="sub"), name="relu")

    assert groups(planned(built(make, 6, 100))) == [["sub", "relu"]]


def test_nodes_of_several_outputs_stay_outside() -> None:
    def make(b: pl.GraphBuilder, x: str) -> Any:
        high, _ = b.op("Split", x, outputs=2, num_outputs=2, name="split")
        return b.op("Relu", b.op("Neg", high, name="neg"), name="relu")

    assert groups(planned(built(make))) == [["neg", "relu"]]


def test_nodes_of_different_devices_stay_apart() -> None:
    graph = built(normalised)
    plan = planned(graph, ["cpu", "worker:0"], pin={"scale": "worker:0", "*": "cpu"})
    assert groups(plan) == [["move", "clip"]]
    check_runs(plan, graph)


def test_workers_run_chains() -> None:
    graph = built(normalised)
    plan = planned(graph, ["worker:0"])
    assert groups(plan) == [["scale", "move", "clip"]]
    check_runs(plan, graph)


@pytest.mark.parametrize("name", ["formal", "sim:npu", "compiled", "opencl:0"])
def test_devices_that_fuse_for_themselves_or_judge_others_see_single_nodes(name: str) -> None:
    try:
        device = find(name)
    except pl.PlaitError:
        pytest.skip(f"no {name} here")
    graph = built(normalised)
    wants = isinstance(device, Chaining) and device.chains(
        graph.nodes[0], graph.call(graph.nodes[0])
    )
    assert not wants


def test_chains_wait_for_nothing_that_takes_more_memory() -> None:
    def make(b: pl.GraphBuilder, x: str) -> Any:
        z = b.op("Add", b.op("Softmax", x, name="p"), b.op("CumSum", x, np.array(0)), name="z")
        between = b.op("Softmax", x, name="between")
        return b.op("Mul", between, z, name="end")

    plan = planned(built(make))
    assert groups(plan) == []  # z is one tensor, what it is made of would be two


def test_symbolic_graphs_are_fused_when_shapes_are_known() -> None:
    plan = planned(built(normalised, "n", 4))
    assert groups(plan) == []
    again = plan.for_shapes({"x": (30, 4)})
    assert groups(again) == [["scale", "move", "clip"]]


def test_planning_again_starts_from_single_nodes() -> None:
    plan = planned(built(normalised), max_in_flight=1)
    more = plan.replan(3)
    assert groups(more) == groups(plan)
    assert [one.name for one in more.applied] == ["fuse_chains"]
    restored = expand_chains(plan.graph)
    assert restored == built(normalised)


def test_within_bounds_smaller_shapes_run_the_same_chains() -> None:
    graph = built(normalised, "n", 4)
    plan = planned(graph, bounds={"n": 50})
    assert groups(plan) == [["scale", "move", "clip"]]
    verify_memory(plan)

    async def run() -> None:
        async with pl.Session(plan) as session:
            for n in (50, 7, 1):
                x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
                found = (await session.run({"x": x}))["y"]
                scaled = x / np.float32(255) - np.float32(0.5)
                np.testing.assert_array_equal(found, np.clip(scaled, -1, 1))

    trio.run(run)


def test_shapes_that_only_happen_to_agree_are_not_fused_within_bounds() -> None:
    b = pl.GraphBuilder("apart")
    a = b.op("Neg", b.input("a", "float32", ("n", 4)), name="neg")
    b.output("y", b.op("Add", a, b.input("c", "float32", ("m", 4)), name="add"))
    plan = planned(b.build(), bounds={"n": 8, "m": 8})
    assert groups(plan) == []


@pytest.mark.parametrize("bounds", [None, {"n": 50}])
def test_plan_files_hold_chains(tmp_path: Path, bounds: dict[str, int] | None) -> None:
    plan = planned(built(normalised, "n" if bounds else 50, 4), bounds=bounds)
    plan.save(tmp_path / "chains.plan")
    loaded = pl.load_plan(tmp_path / "chains.plan")
    assert loaded == plan
    assert groups(loaded) == [["scale", "move", "clip"]]
    plan.save_html(tmp_path / "chains.html")


def test_a_lost_device_leaves_single_nodes_to_the_others() -> None:
    devices = ["worker:0", PrivateDevice("npu")]
    plan = planned(built(normalised), devices, pin={"*": "worker:0"})
    assert len(plan.graph.nodes) == 1
    rest = plan_without(plan, frozenset({"worker:0"}))
    assert rest is not None
    assert set(rest.assignment.values()) == {"npu"}


def timed(plan: Plan) -> pl.Profile:
    async def run() -> pl.Profile:
        async with pl.Session(plan, measure=True) as session:
            for _ in range(5):
                await session.run({"x": np.ones(plan.graph.tensors["x"].static_shape, np.float32)})
            return session.profile()

    return trio.run(run)


def test_measured_chains_tell_what_their_nodes_cost() -> None:
    plan = planned(built(normalised, 100_000))
    costs = Costs.from_profile(timed(plan), plan)
    (node,) = plan.graph.nodes
    whole = costs.node_s("cpu", plan.graph, node)
    assert costs.basis("cpu", plan.graph, node) == "measured"
    single = built(normalised, 100_000)
    assert {costs.basis("cpu", single, one) for one in single.nodes} == {"measured"}
    parts = sum(costs.node_s("cpu", single, one) for one in single.nodes)
    assert parts == pytest.approx(whole)


def test_what_if_an_operator_inside_a_chain_were_faster() -> None:
    plan = planned(built(normalised, 100_000))
    (node,) = plan.graph.nodes
    costs = Costs.of({"cpu": plan.prototypes["cpu"]})
    whole = costs.node_s("cpu", plan.graph, node)
    half = costs.scaled("Clip", 0.5).node_s("cpu", plan.graph, node)
    assert 0.5 * whole < half < whole
    assert costs.scaled("Relu", 0.5).node_s("cpu", plan.graph, node) == pytest.approx(whole)
    assert costs.scaled(FUSED, 0.5).node_s("cpu", plan.graph, node) == pytest.approx(whole / 2)


def test_a_chain_costs_the_operations_of_its_nodes_and_the_bytes_of_its_ends() -> None:
    plan, single = planned(built(normalised)), built(normalised)

    def flops(graph: Graph, node: Node) -> int:
        call, outputs = graph.call(node), graph.output_specs(node)
        return node.operator.cost(call, outputs)

    (node,) = plan.graph.nodes
    assert flops(plan.graph, node) == sum(flops(single, one) for one in single.nodes)
    alone = pl.plan(single, passes=())
    assert pl.simulate(plan).makespan_s < pl.simulate(alone).makespan_s


def test_streams_of_several_items_run_chains() -> None:
    graph = built(normalised)
    plan = planned(graph, max_in_flight=3)

    async def run() -> list[float]:
        items = [{"x": np.full(SIZE, i, np.float32)} for i in range(10)]
        async with pl.Session(plan) as session, session.stream(items) as results:
            return [float(item["y"][0]) for item in [one async for one in results]]

    wanted = [min(max(i / 255 - 0.5, -1), 1) for i in range(10)]
    assert trio.run(run) == pytest.approx(wanted)
