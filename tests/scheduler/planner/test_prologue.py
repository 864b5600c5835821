"""Nodes that follow from constants alone are split off, and planned by themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from hypothesis import given, settings
from plait.graph.core import evaluation
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory.prepared import AT_OPEN
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.planner.prologue import split_prologue
from plait.scheduler.plans.plan import Plan, join_prologue
from plait.scheduler.plans.regions import Location
from plait.scheduler.reports.plan_file import dump_plan, read_plan
from random_graphs import expected
from weighted_graphs import N, partly_known, unfolded, weighted


@pl.operator(lambda x: [x], name="test_prologue.same")
def same(x: Array) -> Array:
    return x


def once(plan: Plan) -> dict[str, str]:
    """Return the devices of what a plan computes once."""
    return {} if plan.prologue is None else dict(plan.prologue.assignment)


def per_item(plan: Plan) -> set[str]:
    return {node.name for node in plan.graph.nodes}


def test_what_follows_from_constants_alone_runs_once() -> None:
    plan = unfolded()
    assert set(once(plan)) == {"relu", "total"}
    assert per_item(plan) == set(plan.assignment) == {"matmul", "add"}
    assert plan.graph.prepared == {"relu", "total"}


def test_nothing_runs_once_where_all_of_it_is_folded() -> None:
    plan = pl.plan(weighted())
    assert plan.prologue is None
    assert not plan.graph.prepared


def test_what_is_too_large_to_be_folded_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "FOLDED_BYTES", 4 * N)
    assert set(once(pl.plan(weighted()))) == {"relu", "total"}


def test_what_is_fetched_is_written_for_each_item() -> None:
    b = pl.GraphBuilder("fetched")
    b.output("y", b.op("Neg", b.op("Relu", np.ones(3, np.float32), name="relu"), name="neg"))
    plan = unfolded(b.build())
    assert set(once(plan)) == {"relu"}
    assert per_item(plan) == {"neg"}


def test_python_functions_run_for_each_item() -> None:
    b = pl.GraphBuilder("python")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Add", x, b.op("test_prologue.same", np.ones(3, np.float32), name="same")))
    assert once(unfolded(b.build())) == {}


@pytest.mark.parametrize("pins", [{}, {"relu": "cpu"}], ids=["free", "pinned"])
def test_nodes_run_where_they_are_read_unless_they_are_pinned(pins: dict[str, str]) -> None:
    plan = unfolded(devices=[PrivateDevice("cpu:1"), "cpu"], pin={"add": "cpu:1", **pins})
    assert plan.assignment["matmul"] == plan.assignment["add"] == "cpu:1"
    assert once(plan) == {"relu": "cpu" if pins else "cpu:1", "total": "cpu:1"}


def test_nodes_that_their_reader_lacks_run_elsewhere() -> None:
    device = PrivateDevice("cpu:1", lacks=["Relu"])
    plan = unfolded(devices=[device, "cpu"], pin={"matmul": "cpu:1", "add": "cpu:1"})
    assert once(plan) == {"relu": "cpu", "total": "cpu:1"}


def test_results_lie_in_a_region_of_their_own_that_all_items_share() -> None:
    plan = unfolded(max_in_flight=3)
    assert plan.memory is not None
    region = plan.memory.pools["host"].regions[AT_OPEN]
    assert (region.copies, region.claims) == (1, ())
    inside = {name for (name, _), at in plan.memory.locations.items() if at.region == AT_OPEN}
    assert inside == {"relu", "total"}
    assert 4 * (N * N + N) <= region.nbytes < 4 * (N * N + N) + 64


def test_where_there_is_no_room_to_keep_results_items_compute_them() -> None:
    b = pl.GraphBuilder("sums")
    total = b.input("x", "float32", (1024,))
    for place in range(4):
        filled = b.op("ConstantOfShape", np.array([1024]), value=place, dtype="float32")
        total = b.op("Add", total, filled)
    b.output("y", total)
    graph = b.build()
    assert len(once(unfolded(graph))) == 4
    tight = unfolded(graph, memory_limits={"host": 4 * 4096})
    assert once(tight) == {}
    assert per_item(tight) == {node.name for node in graph.nodes}


def test_overlapping_results_are_found() -> None:
    plan = unfolded()
    assert plan.memory is not None
    verify_memory(plan)
    moved = {**plan.memory.locations, ("total", "host"): Location("host", AT_OPEN, 0)}
    damaged = dataclasses.replace(plan.memory, locations=moved)
    with pytest.raises(InternalError, match="overlaps what is prepared"):
        verify_memory(dataclasses.replace(plan, memory=damaged))


def test_a_result_among_what_items_write_is_found() -> None:
    plan = unfolded()
    assert plan.memory is not None
    there = plan.memory.locations["matmul", "host"]
    moved = {**plan.memory.locations, ("total", "host"): there}
    damaged = dataclasses.replace(plan.memory, locations=moved)
    with pytest.raises(InternalError, match="prepared for all"):
        verify_memory(dataclasses.replace(plan, memory=damaged))


def test_reports_tell_what_runs_once() -> None:
    plan = unfolded()
    assert "at open: 2 nodes run once" in plan.report()
    assert "cpu: Relu, ReduceSum" in plan.report()
    assert "computed when the plan is opened, the same for all items" in plan.report()
    told = plan.to_dict()["at_open"]
    assert set(told["nodes"]) == {"relu", "total"}
    assert set(told["outputs"]) == {"relu", "total"}
    assert pl.plan(weighted()).to_dict()["at_open"] is None


def test_items_are_not_predicted_to_take_what_runs_once() -> None:
    plan = unfolded()
    (record,) = pl.simulate(plan).profile.records
    assert sum(len(span.step.nodes) for span in record.spans()) == len(per_item(plan)) == 2


def test_a_plan_for_more_items_has_the_section_too() -> None:
    plan = unfolded()
    again = plan.replan(3)
    assert again.max_in_flight == 3
    assert again.prologue == plan.prologue


def test_the_graph_of_a_plan_is_not_whole_without_what_runs_once() -> None:
    plan = unfolded()
    with pytest.raises(pl.GraphError, match="computed when a plan is opened"):
        pl.plan(plan.graph)
    assert set(check(plan.whole).producers) == {"relu", "total", "matmul", "y"}


def test_a_saved_plan_is_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    plan = unfolded(devices=["worker:0", "cpu"], pin={"total": "cpu", "add": "worker:0"})
    plan.save(tmp_path / "x.plan")
    loaded = pl.load_plan(tmp_path / "x.plan")
    assert loaded == plan
    assert once(loaded) == once(plan) != {}


def test_weights_in_float16_are_converted_once(tmp_path: Path) -> None:
    plan = unfolded(precision="float16")
    assert plan.prologue is not None
    assert {plan.prologue.graph.tensors[name].dtype for name in plan.graph.prepared} == {
        np.dtype("float16")
    }
    plan.save(tmp_path / "x.plan")
    assert pl.load_plan(tmp_path / "x.plan") == plan


def test_a_saved_plan_with_bounds_is_the_same_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "FOLDED_BYTES", 4)
    plan = pl.plan(weighted("n"), bounds={"n": 8})
    assert set(once(plan)) == {"relu", "total"}
    plan.save(tmp_path / "x.plan")
    assert pl.load_plan(tmp_path / "x.plan") == plan


def test_a_file_whose_section_is_of_other_nodes_is_refused() -> None:
    plan = unfolded()
    assert plan.prologue is not None
    partition = dataclasses.replace(plan.prologue.partition, assignment={"matmul": "cpu"})
    damaged = dataclasses.replace(
        plan, prologue=dataclasses.replace(plan.prologue, partition=partition)
    )
    with pytest.raises(pl.ParseError, match="does not follow from constants"):
        read_plan(dump_plan(damaged), "a file", {})


@settings(max_examples=40)
@given(drawn=partly_known())
def test_a_graph_that_was_split_computes_the_same_when_it_is_joined(
    drawn: tuple[Graph, dict[str, Array]],
) -> None:
    graph, feeds = drawn
    parts = split_prologue(graph)
    if parts is None:
        return
    made = expected(check(parts.prologue), {})
    assert set(made) == parts.rest.prepared
    found, wanted = expected(parts.rest, {**feeds, **made}), expected(graph, feeds)
    assert all(np.array_equal(found[name], wanted[name]) for name in graph.outputs)
    whole = expected(check(join_prologue(parts.prologue, parts.rest)), feeds)
    assert all(np.array_equal(whole[name], wanted[name]) for name in graph.outputs)
