"""Plans with bounds: made once, for the largest shapes, so that smaller ones fit into them."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.cpu import CpuDevice
from plait.devices.device import scratch_specs
from plait.graph.core.ir import Graph
from plait.graph.values.errors import ParseError
from plait.graph.values.tensor import TensorSpec
from plait.scheduler.planner import prepare
from plait.scheduler.planner.bounded_shapes import BoundedShapes
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.plan import Plan
from plait.scheduler.reports.plan_file import dump_plan, read_plan
from plait.scheduler.shapes.bounds import _constraints, find_plan_constraints
from plait.scheduler.shapes.constraints import NONE
from plait.scheduler.shapes.specialise import specialise
from varying_shapes import WIDTH, open_graphs, stacked, switching, two_steps


def planned(graph: Graph, bound: int | tuple[int, int] = 64, **options: Any) -> Plan:
    return pl.plan(graph, bounds={"n": bound}, **options)


def test_all_is_planned_for_the_largest_shapes() -> None:
    plan = planned(two_steps(), max_in_flight=3)
    largest = pl.plan(two_steps(), shapes={"x": (64, WIDTH)}, max_in_flight=3)
    assert plan.is_static
    assert plan.memory is not None
    assert largest.memory is not None
    assert plan.graph.tensors == largest.graph.tensors
    assert plan.memory.pools == largest.memory.pools
    assert plan.bounds == {"n": (1, 64)}


def test_what_may_be_fed_keeps_its_symbols() -> None:
    assert planned(two_steps()).fed.tensors["x"].shape == ("n", WIDTH)


def test_reports_say_for_which_shapes_a_plan_is() -> None:
    plan = planned(two_steps(), (8, 2048))
    assert "in   x float32[n, 3]" in plan.report()
    assert "planned for all shapes with n 8 to 2,048; figures are of the largest" in plan.report()
    assert plan.to_dict()["bounds"] == {"n": [8, 2048]}


def test_a_smaller_shape_has_the_same_steps_and_offsets() -> None:
    devices = [CpuDevice(), PrivateDevice("npu", lacks=["Add"])]
    pins = {"first": "npu", "exp": "npu"}
    plan = planned(two_steps(), devices=devices, pin=pins)
    fitted = BoundedShapes(plan).fit({"x": (5, WIDTH)})
    assert fitted is not None
    assert fitted.memory == plan.memory
    assert fitted.assignment == plan.assignment
    assert [(s.name, s.device, s.waits) for s in fitted.steps] == [
        (s.name, s.device, s.waits) for s in plan.steps
    ]
    assert fitted.graph.tensors["x"].shape == (5, WIDTH)
    nbytes = {step.work.nbytes for step in fitted.steps if hasattr(step.work, "nbytes")}
    assert nbytes == {5 * WIDTH * 4}


@settings(max_examples=60)
@given(
    graph=open_graphs(),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    slots=st.integers(1, 2),
    placement=st.integers(0, 1 << 30),
)
def test_what_fits_is_sound_and_most_of_it_does(
    graph: Graph, lengths: list[int], slots: int, placement: int
) -> None:
    """Verified by what shares no code with planner and fitting; rows are cut, joined, reshaped."""
    random = np.random.default_rng(placement)
    devices = [CpuDevice(), CpuDevice("other"), PrivateDevice("npu"), AtomicDevice("atom")]
    pins = {node.name: devices[random.integers(4)].name for node in graph.nodes}
    plan = pl.plan(graph, devices, pin=pins, bounds={"n": 12}, max_in_flight=slots, passes=())
    fitting = BoundedShapes(plan)
    for length in lengths:
        fitted = fitting.fit({"x": (length, WIDTH)})
        if fitted is not None:
            verify_memory(fitted)
        assert fitted is not None or length == 1  # one row is broadcast, not added


def test_where_bytes_are_shared_otherwise_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that allows for the largest shapes alone would write over what is still read."""
    monkeypatch.setattr(prepare, "find_constraints", lambda *_, **__: NONE)
    plan = planned(stacked())
    assert BoundedShapes(plan).fit({"x": (64, WIDTH)}) is not None
    assert BoundedShapes(plan).fit({"x": (63, WIDTH)}) is None


def test_what_is_joined_along_an_open_axis_is_copied_so_that_all_shapes_fit() -> None:
    fitting = BoundedShapes(planned(stacked()))
    assert all(fitting.fit({"x": (length, WIDTH)}) for length in range(1, 65))


def test_other_nodes_do_not_fit() -> None:
    fitting = BoundedShapes(planned(switching()))
    assert fitting.fit({"x": (3, WIDTH)}) is None
    assert fitting.fit({"x": (4, WIDTH)}) is not None


def test_kernels_that_need_more_scratch_for_less_have_room() -> None:
    b = pl.GraphBuilder("convolution")
    weights = np.zeros((8, 4, 3, 3), np.float32)
    b.output("y", b.op("Conv", b.input("x", "float32", (1, 4, "h", "w")), weights))
    graph = b.build()
    shapes = [(1, 4, height, width) for height in range(16, 129, 8) for width in range(16, 129, 28)]
    assert max(map(partial(scratch_nbytes, graph), shapes)) > scratch_nbytes(
        graph, (1, 4, 128, 128)
    )
    fitting = BoundedShapes(pl.plan(graph, bounds={"h": (16, 128), "w": (16, 128)}))
    assert all(fitting.fit({"x": shape}) for shape in shapes)


def scratch_nbytes(graph: Graph, shape: tuple[int, ...]) -> int:
    """Return what the only node needs beside its tensors."""
    static = specialise(graph, {"x": shape})
    specs = scratch_specs(CpuDevice(), static, static.nodes[0])
    return sum(spec.nbytes for spec in specs.values())


def test_a_plan_for_more_items_has_the_same_bounds() -> None:
    plan = planned(two_steps()).replan(5)
    assert plan == planned(two_steps(), max_in_flight=5)


def test_a_plan_for_one_shape_has_memory_for_just_that() -> None:
    plan = planned(two_steps()).for_shapes({"x": (5, WIDTH)})
    assert plan.memory is not None
    assert plan.memory.nbytes < 5 * 64 * 4
    assert not plan.bounds


def test_shapes_may_fix_what_bounds_leave_open() -> None:
    b = pl.GraphBuilder("two inputs")
    x, y = b.input("x", "float32", ("n", 2)), b.input("y", "float32", ("m", 2))
    b.output("z", b.op("Concat", x, y, axis=0))
    plan = pl.plan(b.build(), shapes={"y": (3, 2)}, bounds={"n": 8})
    assert plan.graph.tensors["z"].shape == (11, 2)


def test_bounds_may_be_numbers_of_numpy() -> None:
    assert planned(two_steps(), np.int64(8)).bounds == {"n": (1, 8)}  # type: ignore[arg-type]


def test_bounds_of_what_has_no_symbols_change_nothing() -> None:
    plan = pl.plan(two_steps(), shapes={"x": (3, WIDTH)}, bounds={})
    assert plan == pl.plan(two_steps(), shapes={"x": (3, WIDTH)})
    assert read_plan(dump_plan(plan), "bytes", {}) == plan


def test_shapes_that_do_not_fit_together_at_their_largest_are_said_to() -> None:
    b = pl.GraphBuilder("two inputs")
    x, y = b.input("x", "float32", ("n", 2)), b.input("y", "float32", ("m", 2))
    b.output("z", b.op("Add", x, y))
    with pytest.raises(pl.ShapeError) as caught:
        pl.plan(b.build(), bounds={"n": 8, "m": 9})
    note = "all is planned for the largest lengths within bounds: n = 8, m = 9"
    assert caught.value.__notes__ == [note]


@pytest.mark.parametrize("length", [3, 9])
def test_what_would_be_wide_enough_keeps_the_other_end(length: int) -> None:
    plan = planned(two_steps(), (4, 8))
    with pytest.raises(pl.FeedError) as caught:
        pl.run(plan, {"x": np.zeros((length, WIDTH), "float32")})
    wide = (3, 8) if length == 3 else (4, 9)
    assert caught.value.fix == f"plan with wider bounds: bounds={{'n': {wide}}}"


@pytest.mark.parametrize("bound", [0, -1, (3, 2), (1, 2, 3), "8", True, 2.5, (1, None), 1 << 70])
def test_a_bound_that_is_none_is_refused(bound: Any) -> None:
    with pytest.raises(pl.PlanError, match="the bound of 'n' is") as caught:
        planned(two_steps(), bound)
    assert "1,099,511,627,776 at most" in str(caught.value.fix)


def test_bounds_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(pl.PlanError, match="bounds is 64"):
        pl.plan(two_steps(), bounds=64)  # type: ignore[arg-type]


def test_a_bound_of_nothing_that_is_fed_is_refused() -> None:
    with pytest.raises(pl.PlanError, match="'m', which is the length of nothing") as caught:
        pl.plan(two_steps(), bounds={"n": 8, "m": 8})
    assert caught.value.fix == "its symbols are: n"
    with pytest.raises(pl.PlanError, match="'n2'") as caught:
        pl.plan(two_steps(), bounds={"n": 8, "n2": 8})
    assert caught.value.fix == "did you mean 'n'?"


def test_a_bound_of_what_a_shape_fixes_is_refused_as_that() -> None:
    b = pl.GraphBuilder("fixed")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n", 3))))
    with pytest.raises(pl.PlanError, match=r"'n' has a bound, and the shape.*'x' fixes it: 5"):
        pl.plan(b.build(), bounds={"n": 64}, shapes={"x": (5, 3)})


def test_a_symbol_without_a_bound_is_refused() -> None:
    with pytest.raises(pl.PlanError, match="the bounds leave 'n' open"):
        pl.plan(two_steps(), bounds={})


def test_an_input_of_unknown_rank_is_refused() -> None:
    graph = two_steps()
    anything = {name: TensorSpec("float32", None) for name in graph.tensors}
    with pytest.raises(pl.PlanError, match="the rank of an input is not known"):
        pl.plan(replace(graph, tensors=anything), bounds={})


def test_a_saved_plan_with_bounds_of_something_else_is_refused() -> None:
    plan = planned(two_steps())
    strange: tuple[dict[str, tuple[int, int]], ...] = (
        {"m": (1, 64)},
        {"n": (1, 65)},
        {"n": (9, 3)},
        {"n": (1, 1 << 62)},
        {},
    )
    for bounds in strange:
        with pytest.raises(ParseError, match="the plan is damaged"):
            read_plan(dump_plan(replace(plan, bounds=bounds)), "bytes", {})


def test_a_saved_plan_has_its_bounds() -> None:
    plan = planned(stacked(), (2, 64), max_in_flight=2)
    loaded = read_plan(dump_plan(plan), "bytes", {})
    assert loaded == plan
    assert loaded.template == plan.template
    assert BoundedShapes(loaded).fit({"x": (7, WIDTH)}) == BoundedShapes(plan).fit(
        {"x": (7, WIDTH)}
    )


def test_constraints_are_found_once_and_forgotten_with_their_graph() -> None:
    plan = planned(two_steps())
    found = find_plan_constraints(plan)
    assert find_plan_constraints(plan) is found
    key = id(plan.graph)
    assert key in _constraints._items
    del plan
    gc.collect()
    assert key not in _constraints._items
