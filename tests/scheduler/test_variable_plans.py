"""Plans of graphs with variables: where these lie, what is kept until the end, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from interleavings import Interleaving
from plait.devices import Device
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.scheduler.planner.memory.verify import verify_memory
from stateful_graphs import stateful


def updating(length: int = 4) -> Graph:
    """Return a graph that reads `w` on one side, and assigns to it on the other."""
    b = pl.GraphBuilder("updating")
    w = b.variable("w", np.ones(length, np.float32))
    x = b.input("x", "float32", (length,))
    b.output("y", b.op("Mul", w, x, name="forward"))
    new = b.op("Add", w, x, name="backward")
    b.output("more", b.op("Exp", b.assign(w, new, name="assign"), name="exp"))
    return b.build()


def private() -> pl.Plan:
    pins = {"forward": "cpu:1", "backward": "cpu:2", "assign": "cpu:2", "exp": "cpu:2"}
    return pl.plan(updating(), [PrivateDevice("cpu:1"), PrivateDevice("cpu:2"), "cpu"], pin=pins)


def test_a_variable_lies_where_it_is_read_and_is_committed_there() -> None:
    plan = private()
    assert plan.placement is not None
    memories = {f"memory of cpu:{i}" for i in (1, 2)}
    assert plan.placement.prepared == {("w", memory) for memory in memories}
    commits = plan.placement.commits
    assert {(commit.source, commit.target) for commit in commits} == {
        (("assign", memory), ("w", memory)) for memory in memories
    }
    assert {step.name for step in plan.steps if "assign:" in step.name} == {
        "assign: memory of cpu:2 to host",
        "assign: host to memory of cpu:1",
    }


def test_what_is_assigned_is_not_overwritten_before_the_end() -> None:
    plan = pl.plan(updating(1 << 10))
    assert plan.memory is not None
    verify_memory(plan)
    kept, later = plan.memory.locations["assign", "host"], plan.memory.locations["more", "host"]
    assert (kept.region, later.region) == ("next of variable w", "items")
    locations = {**plan.memory.locations, ("more", "host"): kept}
    broken = replace(plan, memory=replace(plan.memory, locations=locations))
    with pytest.raises(InternalError, match="overlap while both are needed"):
        verify_memory(broken)


def test_a_variable_has_memory_of_its_own() -> None:
    plan = pl.plan(updating())
    assert plan.memory is not None
    assert plan.memory.locations["w", "host"].region == "variable w"
    (region,) = (one for one in plan.memory.regions if one.name == "variable w")
    assert (region.nbytes, region.copies, region.claims) == (16, 1, ())


@settings(max_examples=30, deadline=None)
@given(graph=stateful(), seed=st.integers(0, 1 << 30), places=st.lists(st.integers(0, 3)))
def test_no_item_overwrites_what_another_needs(graph: Graph, seed: int, places: list[int]) -> None:
    devices: list[Device | str] = [PrivateDevice("cpu:1"), AtomicDevice("cpu:2"), "worker:0", "cpu"]
    names = ["cpu:1", "cpu:2", "worker:0", "cpu"]
    nodes = [node.name for node in graph.nodes if node.op != "Variable"]
    pins = {node: names[place] for node, place in zip(nodes, places, strict=False)}
    plan = pl.plan(graph, devices, pin=pins, passes=())
    verify_memory(plan)
    Interleaving(plan, 4, seed).run()


def test_a_report_says_what_is_kept() -> None:
    report = pl.plan(updating()).report()
    assert "variable w: 16 bytes, kept by the session from item to item" in report


def test_saved_plans_are_the_same_again(tmp_path: Path) -> None:
    plan, path = pl.plan(updating()), tmp_path / "updating.plan"
    plan.save(path)
    assert pl.load_plan(path) == plan


def test_the_graph_of_a_plan_is_told_with_its_variables_as_nodes() -> None:
    plan = pl.plan(updating())
    assert [node.name for node in plan.fed.nodes if node.op == "Variable"] == ["w"]
    assert not any(node.op == "Variable" for node in plan.graph.nodes)
    assert pl.plan(plan.fed).fed == plan.fed


def test_variables_are_no_constants_to_what_runs_once() -> None:
    b = pl.GraphBuilder("g")
    w = b.variable("w", np.ones(4, np.float32))
    large = b.op("ConstantOfShape", np.array([1 << 23]), name="large")
    total = b.op("ReduceSum", large, keepdims=False, name="total")
    b.output("y", b.op("Mul", b.op("Neg", w, name="neg"), total, name="mul"))
    plan = pl.plan(b.build())
    assert plan.prologue is not None
    assert {node.name for node in plan.prologue.graph.nodes} == {"large", "total"}
    assert {node.name for node in plan.graph.nodes} == {"neg", "mul"}
    assert pl.run(plan, {})["y"].tolist() == [-0.0] * 4


def test_float16_computes_with_variables_in_float32() -> None:
    b = pl.GraphBuilder("g")
    w = b.variable("w", np.eye(4, dtype=np.float32))
    x = b.input("x", "float32", (4, 4))
    y = b.op("MatMul", x, w)
    b.output("y", y)
    b.output("train", b.assign(w, b.op("Add", w, y)))
    plan = pl.plan(b.build(), precision="float16")
    assert any(node.op == "Cast" for node in plan.graph.nodes)
    with pl.BlockingSession(plan) as session:
        for power in range(3):
            y = session.run({"x": np.eye(4, dtype=np.float32)})["y"]
            assert y[0, 0] == 2**power
        assert session.variables["w"].dtype == np.float32


def test_simulated_items_cost_the_same_with_variables_and_with_constants() -> None:
    def seconds(is_variable: bool) -> float:
        b = pl.GraphBuilder("reading")
        value = np.ones(4, np.float32)
        w = b.variable("w", value) if is_variable else b.constant(value)
        b.output("y", b.op("Mul", b.input("x", "float32", (4,)), w))
        return pl.simulate(pl.plan(b.build(), ["sim:npu"]), items=3).makespan_s

    assert seconds(True) == seconds(False) > 0


@pytest.mark.parametrize(
    "arguments", [{"max_in_flight": 2}, {"devices": "worker:0..1"}], ids=["in flight", "replicas"]
)
def test_items_that_commit_as_a_whole_run_one_at_a_time(arguments: dict[str, object]) -> None:
    with pytest.raises(pl.PlanError, match="changes a variable, so that items run one at a time"):
        pl.plan(updating(), **arguments, commit="item")  # type: ignore[arg-type]
    assert pl.plan(updating(), **arguments).graph.late  # type: ignore[arg-type]
    one = pl.plan(updating(), commit="item")
    assert not one.graph.late
    assert one.replan(1).max_in_flight == 1
    with pytest.raises(pl.PlanError, match="changes a variable, so that items run one at a time"):
        one.replan(2)
    with pytest.raises(pl.PlanError, match="commit is 'never'"):
        pl.plan(updating(), commit="never")  # type: ignore[arg-type]


def test_an_input_is_no_variable() -> None:
    b = pl.GraphBuilder("g")
    w = b.variable("w", np.ones(2, np.float32))
    x = b.input("x", "float32", (2,))
    b.output("y", b.assign(w, x, name="assign"))
    graph = b.build()
    (assign,) = (node for node in graph.nodes if node.op == "Assign")
    moved = replace(assign, inputs=("x", "x"))
    broken = replace(graph, nodes=tuple(moved if n is assign else n for n in graph.nodes))
    with pytest.raises(pl.GraphError, match="'x' is not a variable"):
        pl.plan(broken)
