"""Control flow whose shapes are known whatever happens: one node of a plan, on a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_graphs import doubled, doubling_body, growing_body, scaled
from plait.devices import program
from plait.devices.errors import KernelError
from plait.devices.event import CancelledWorkError
from plait.devices.memory import host_arena, host_view
from plait.devices.nested import MOST_NODES
from plait.graph.core.ir import Graph
from plait.scheduler.shapes import inlining

DEVICES = ("cpu", "compiled", "worker:0", "ort")
X = np.array([1.0, 2.0, 3.0], np.float32)


def choosing(then: Graph, other: Graph) -> Graph:
    """Return a graph that runs one of two graphs by the sign of a sum."""
    b = pl.GraphBuilder("choosing")
    x = b.input("x", "float32", (3,))
    cond = b.op("Greater", b.op("ReduceSum", x, keepdims=False), np.float32(0))
    y = b.op("If", cond, x, then_branch=then, else_branch=other, name="choose")
    b.output("y", b.op("Neg", y))
    return b.build()


def turning_body(*, endless: bool = False) -> Graph:
    """Return a body of Loop whose two states change places, one of them scaled by a captured one.

    It ends when a sum is over 50, or never; what is put out is a view of a state.
    """
    b = pl.GraphBuilder("turning")
    b.input("step", "int64", ())
    going = b.input("going", "bool", ())
    one, other = b.input("one", "float32", (3,)), b.input("other", "float32", (3,))
    by = b.input("by", "float32", (3,))
    grown = b.op("Mul", b.op("Add", one, by), by, name="grow")
    goes_on = b.op("Less", b.op("ReduceSum", grown, keepdims=False), np.float32(50))
    b.output("goes_on", b.op("Or", going, goes_on) if endless else goes_on)
    b.output("next", b.op("Reshape", other, np.array([3])))
    b.output("then", grown)
    return b.build()


def turning(*, endless: bool = False) -> Graph:
    """Return a graph with a Loop of as many iterations as a number says that is computed."""
    b = pl.GraphBuilder("turns")
    x, by, n = (b.input(name, "float32", (3,)) for name in ("x", "by", "n"))
    trips = b.op("Cast", b.op("ReduceMax", n, keepdims=False), to="int64")
    body = turning_body(endless=endless)
    one, other = b.op("Loop", trips, None, x, x, by, body=body, captured=1, outputs=2, name="loop")
    b.output("one", one)
    b.output("other", b.op("Neg", other))
    return b.build()


def fed(n: int, by: float = 1.25) -> dict[str, np.ndarray]:
    return {"x": X, "by": np.full(3, by, np.float32), "n": np.full(3, n, np.float32)}


@pytest.mark.parametrize("device", DEVICES)
def test_a_small_branch_is_a_node_of_the_plan(device: str) -> None:
    graph = choosing(scaled("then", 2), scaled("else", 10))
    plan = pl.plan(graph, [device])
    assert plan.assignment["choose"] == device
    assert len(plan.subgraphs) == 1
    for sign in (1, -1):
        found = pl.run(plan, {"x": sign * X})["y"]
        np.testing.assert_array_equal(found, -sign * X * (2 if sign > 0 else 10))


@settings(max_examples=12)
@given(st.integers(0, 12), st.floats(0.5, 2, width=32), st.sampled_from(["cpu", "ort"]))
def test_loops_as_one_node_do_as_the_session_does(n: int, by: float, device: str) -> None:
    oracle = pl.plan(turning(), ["formal"])
    assert oracle.assignment["loop"] == "session"
    plan = pl.plan(turning(), [device])
    assert plan.assignment["loop"] == device
    found, wanted = (pl.run(one, fed(n, by)) for one in (plan, oracle))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5)


def filtering(n: int, backward: int, axis: int) -> Graph:
    """Return a graph with a Scan of n slices: sums along an axis, and their squares."""
    b = pl.GraphBuilder("step")
    state, piece = b.input("state", "float32", (3,)), b.input("piece", "float32", (3,))
    total = b.op("Add", b.op("Mul", state, np.float32(0.5)), piece)
    b.output("total", total)
    b.output("square", b.op("Mul", total, total))
    body = b.build()
    b = pl.GraphBuilder("filtering")
    x = b.input("x", "float32", (n, 3) if axis == 0 else (3, n))
    last, squares = b.op(
        "Scan",
        *(np.zeros(3, np.float32), x),
        body=body,
        num_scan_inputs=1,
        scan_input_axes=(axis,),
        scan_input_directions=(backward,),
        scan_output_axes=(1 - axis,),
        scan_output_directions=(1 - backward,),
        outputs=2,
        name="scan",
    )
    b.output("last", last)
    b.output("squares", squares)
    return b.build()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("backward", "axis"), [(0, 0), (1, 1)])
def test_long_scans_are_one_node(device: str, backward: int, axis: int) -> None:
    n = inlining.UNROLLED_NODES
    graph = filtering(n, backward, axis)
    plan = pl.plan(graph, [device])
    assert plan.assignment["scan"] == device
    x = np.random.default_rng(1).standard_normal(graph.tensors["x"].static_shape, np.float32)
    state, rows = np.zeros(3, np.float32), []
    for piece in np.moveaxis(x, axis, 0)[:: -1 if backward else 1]:
        state = np.float32(0.5) * state + piece
        rows.append(state * state)
    found = pl.run(plan, {"x": x})
    np.testing.assert_allclose(found["last"], state, rtol=1e-5)
    stacked = np.stack(rows if backward else rows[::-1], 1 - axis)
    np.testing.assert_allclose(found["squares"], stacked, rtol=1e-5)


def test_rows_of_a_loop_that_always_goes_on_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", 0)
    b = pl.GraphBuilder("rows")
    x = b.input("x", "float32", (3,))
    last, rows = b.op("Loop", np.int64(5), None, x, body=doubling_body(), outputs=2, name="loop")
    b.output("last", last)
    b.output("rows", rows)
    wanted = doubled(X, 5)
    for device in ("cpu", "ort"):
        plan = pl.plan(b.build(), [device])
        assert plan.assignment["loop"] == device
        found = pl.run(plan, {"x": X})
        np.testing.assert_array_equal(found["last"], wanted[0])
        np.testing.assert_array_equal(found["rows"], wanted[1])


@pytest.mark.parametrize("device", DEVICES)
async def test_a_loop_without_end_can_be_cancelled(device: str) -> None:
    """It runs on a thread of its device, also after it was quick many times."""
    async with pl.Session(pl.plan(turning(endless=True), [device])) as session:
        for _ in range(20):
            usual = await session.run(fed(3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, fed(1 << 40))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        again = await session.run(fed(3))
    for name, array in usual.items():
        np.testing.assert_array_equal(again[name], array)


class CancelledLater:
    """An event that is cancelled when it has been looked at some times."""

    node_ns: tuple[int, ...] | None = None

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def cancelled(self) -> bool:
        """True in the end."""
        self.looks -= 1
        return self.looks < 0


def test_a_cancelled_loop_stops_between_iterations() -> None:
    plan = pl.plan(turning(endless=True))
    graph = plan.graph
    specs = {n: s for n, s in graph.tensors.items() if n not in graph.constants}
    loop = graph.node("loop")
    (buffer,) = program.scratch(loop, "cpu", graph.call(loop), graph.output_specs(loop))
    specs["loop\0scratch0"] = buffer
    views = {name: host_view(host_arena(s.nbytes), 0, s) for name, s in specs.items()}
    for name, array in fed(1 << 40).items():
        views[name].array[...] = array
    bound = program.bind(np, "cpu", graph, views, graph.constants)
    event = CancelledLater(1000)
    with pytest.raises(CancelledWorkError):
        bound.run(event)
    assert event.looks == -1


def picking() -> Graph:
    """Return a body of Loop that reads a place which is not there in its third iteration."""
    b = pl.GraphBuilder("picking")
    step = b.input("step", "int64", ())
    b.input("going", "bool", ())
    state = b.input("state", "float32", ())
    x = b.input("x", "float32", (2,))
    taken = b.op("Gather", x, step, axis=0, name="take")
    b.output("goes_on", b.op("Less", b.op("Add", state, taken), np.float32(100)))
    b.output("next", taken)
    return b.build()


def test_a_kernel_that_fails_in_a_loop_is_named() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (2,))
    trips = b.op("Cast", b.op("ReduceMax", x, keepdims=False), to="int64")
    zero = np.float32(0)
    y = b.op("Loop", trips, None, zero, x, body=picking(), captured=1, outputs=1, name="loop")
    b.output("y", y)
    plan = pl.plan(b.build())
    assert pl.run(plan, {"x": np.array([1, 2], np.float32)})["y"] == 2
    with pytest.raises(KernelError, match="loop/take"):
        pl.run(plan, {"x": np.array([1, 5], np.float32)})


def test_pins_on_nodes_inside_place_the_whole() -> None:
    graph = choosing(scaled("then", 2), scaled("else", 10))
    plan = pl.plan(graph, ["cpu", "worker:0"], pin={"choose/*": "worker:0"})
    assert plan.assignment["choose"] == "worker:0"
    plan = pl.plan(graph, ["cpu", "formal"], pin={"choose/*": "formal"})
    assert plan.assignment["choose"] == "session", "that one can't"
    assert plan.assignment["choose/scale"] == "formal"


def test_large_branches_are_planned_for_all_devices() -> None:
    b = pl.GraphBuilder("long")
    y = b.input("x", "float32", (3,))
    for _ in range(MOST_NODES):
        y = b.op("Sin", b.op("Add", y, y))
    b.output("y", y)
    plan = pl.plan(choosing(b.build(), scaled("else", 10)))
    assert plan.assignment["choose"] == "session"


def test_branches_of_different_shapes_wait_for_the_condition() -> None:
    b = pl.GraphBuilder("row")
    b.output("y", b.op("Concat", *[b.input("x", "float32", ("n",))] * 2, axis=0))
    graph = choosing(b.build(), scaled("else", 1))
    plan = pl.plan(graph)
    assert plan.assignment["choose"] == "session"
    assert "'choose' (If): needs the values of 'greater.1'" in plan.report()
    np.testing.assert_array_equal(pl.run(plan, {"x": X})["y"], -np.tile(X, 2))


def test_a_loop_of_growing_states_waits_for_its_trip_count() -> None:
    b = pl.GraphBuilder("growing")
    x = b.input("x", "float32", (3,))
    trips = b.op("Cast", b.op("ReduceMax", x, keepdims=False), to="int64", name="trips")
    b.output("y", b.op("Neg", b.op("Loop", trips, None, x, body=growing_body(), name="loop")))
    plan = pl.plan(b.build())
    assert plan.assignment["loop"] == "session"
    assert "'loop' (Loop): needs the values of 'trips'" in plan.report()
    np.testing.assert_array_equal(pl.run(plan, {"x": X})["y"], -np.append(X, [0, 1, 2]))


@pytest.mark.parametrize("device", ["cpu", "ort"])
def test_bounded_lengths_run_through_branches(device: str) -> None:
    b = pl.GraphBuilder("bounded")
    x = b.input("x", "float32", ("n",))
    cond = b.op("Greater", b.op("ReduceSum", x, keepdims=False), np.float32(0))
    then, other = scaled("then", 2), scaled("else", 10)
    y = b.op("If", cond, x, then_branch=then, else_branch=other, name="choose")
    b.output("y", b.op("Neg", y))
    plan = pl.plan(b.build(), [device], bounds={"n": 8})
    assert plan.is_static
    with pl.BlockingSession(plan) as session:
        for n in (8, 1, 5, 8):
            given = np.arange(1, n + 1, dtype=np.float32)
            for sign in (1, -1):
                found = session.run({"x": sign * given})["y"]
                np.testing.assert_array_equal(found, -sign * given * (2 if sign > 0 else 10))


@pytest.mark.parametrize("device", ["cpu", "ort"])
def test_plans_with_whole_nodes_are_saved(device: str, tmp_path: Path) -> None:
    plan = pl.plan(turning(), [device])
    plan.save(tmp_path / "turns.plan")
    again = pl.load_plan(tmp_path / "turns.plan")
    assert again.assignment == plan.assignment
    found, wanted = pl.run(again, fed(4)), pl.run(plan, fed(4))
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_constants_of_branches_are_no_inputs_of_onnx_runtime() -> None:
    """Large ones are handed over as they are, small ones are part of the model."""
    weight = np.random.default_rng(0).standard_normal((3, 400, 3)).astype(np.float32)

    def branch(name: str, by: float) -> Graph:
        b = pl.GraphBuilder(name)
        x = b.input("x", "float32", (3,))
        product = b.op("ReduceSum", b.op("MatMul", weight, x), np.array([1]), keepdims=False)
        b.output("y", b.op("Mul", product, np.float32(by)))
        return b.build()

    plan = pl.plan(choosing(branch("then", 2), branch("else", 10)), ["ort"])
    assert plan.assignment["choose"] == "ort"
    for sign in (1, -1):
        found = pl.run(plan, {"x": sign * X})["y"]
        product = (weight @ (sign * X)).sum(axis=1)
        np.testing.assert_allclose(found, -product * (2 if sign > 0 else 10), rtol=1e-4)
