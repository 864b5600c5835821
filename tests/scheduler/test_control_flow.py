"""If, Loop and Scan: taken into the plan where they are decided ahead, else run by the session."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_graphs import doubled, doubling_body, growing_body, running_sum_body, scaled
from plait.graph.ir import Graph
from plait.scheduler import inlining

X = np.array([1.0, 2.0, 3.0], np.float32)


def branching(then: Graph, other: Graph) -> Graph:
    b = pl.GraphBuilder("branching")
    cond, x = b.input("cond", "bool", ()), b.input("x", "float32", ("n",))
    extra = [x] * (len(then.inputs) - 1)
    y = b.op("If", cond, x, *extra, then_branch=then, else_branch=other, name="choose")
    b.output("y", b.op("Neg", y))
    return b.build()


def looping(body: Graph, *, trips: int | None = None) -> Graph:
    """Return a graph with a Loop; the trip count is fed unless it is given."""
    b = pl.GraphBuilder("looping")
    count = b.input("trips", "int64", ()) if trips is None else np.int64(trips)
    x = b.input("x", "float32", ("n",))
    n_outputs = len(body.outputs) - 1
    results = b.op("Loop", count, np.bool_(True), x, body=body, outputs=n_outputs, name="loop")
    names = results if isinstance(results, tuple) else (results,)
    for name, result in zip(("last", "rows"), names, strict=False):
        b.output(name, b.op("Identity", result))
    return b.build()


# If


@pytest.mark.parametrize("cond", [True, False])
def test_the_condition_chooses_a_branch(cond: bool) -> None:
    graph = branching(scaled("then", 2), scaled("else", 10))
    found = pl.run(graph, {"cond": np.array(cond), "x": X})
    np.testing.assert_array_equal(found["y"], -X * (2 if cond else 10))


def test_a_branch_that_is_chosen_ahead_becomes_part_of_the_plan() -> None:
    b = pl.GraphBuilder("known")
    x = b.input("x", "float32", (3,))
    chosen = scaled("then", 2)
    y = b.op("If", np.bool_(True), x, then_branch=chosen, else_branch=chosen, name="choose")
    b.output("y", y)
    plan = pl.plan(b.build())
    assert plan.is_static
    assert "choose/scale" in plan.assignment


async def test_a_condition_that_is_computed_is_waited_for() -> None:
    b = pl.GraphBuilder("computed")
    x = b.input("x", "float32", (3,))
    cond = b.op("Greater", b.op("ReduceSum", x, keepdims=False), np.float32(0))
    then, other = scaled("then", 2), scaled("else", 10)
    b.output("y", b.op("If", cond, x, then_branch=then, else_branch=other))
    plan = pl.plan(b.build())
    assert not plan.is_static
    async with pl.Session(plan) as session:
        for sign in (1, -1, 1):
            found = await session.run({"x": sign * X})
            np.testing.assert_array_equal(found["y"], sign * X * (2 if sign > 0 else 10))


def test_branches_of_different_shapes_are_told_apart() -> None:
    b = pl.GraphBuilder("row")
    b.output("y", b.op("Unsqueeze", b.input("x", "float32", ("n",)), np.array([0])))
    graph = branching(b.build(), scaled("else", 1))
    assert graph.tensors["y"].shape is None
    found = pl.run(graph, {"cond": np.array(True), "x": X})
    np.testing.assert_array_equal(found["y"], -X[np.newaxis])


def test_branches_with_too_many_inputs_are_refused() -> None:
    with pytest.raises(pl.ShapeError, match="has 1 inputs, its node hands it 2"):
        branching(scaled("then", 2, of=2), scaled("else", 10))


def test_branches_of_different_dtypes_are_refused() -> None:
    b = pl.GraphBuilder("whole")
    b.output("y", b.op("Cast", b.input("x", "float32", ("n",)), to="int32"))
    with pytest.raises(pl.ShapeError, match="output 0 of the branches is float32"):
        branching(scaled("then", 2), b.build())


# Loop


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_loop_of_known_length_is_unrolled_into_the_plan(trips: int) -> None:
    graph = looping(doubling_body(), trips=trips)
    plan = pl.plan(graph, shapes={"x": (3,)})
    assert plan.is_static
    last, rows = doubled(X, trips)
    found = pl.run(plan, {"x": X})
    np.testing.assert_array_equal(found["last"], last)
    np.testing.assert_array_equal(found["rows"], rows)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_long_loop_is_run_body_by_body(trips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", 0)
    last, rows = doubled(X, trips)
    found = pl.run(looping(doubling_body()), {"trips": np.array(trips), "x": X})
    np.testing.assert_array_equal(found["last"], last)
    np.testing.assert_array_equal(found["rows"].reshape(rows.shape if trips else (0, 3)), rows)


def test_a_loop_ends_when_its_condition_says_so() -> None:
    last, rows = doubled(X, 100, limit=50)
    found = pl.run(looping(doubling_body(limit=50)), {"trips": np.array(100), "x": X})
    np.testing.assert_array_equal(found["last"], last)
    np.testing.assert_array_equal(found["rows"], rows)
    assert len(rows) < 10


def test_a_state_may_change_its_shape() -> None:
    found = pl.run(looping(growing_body()), {"trips": np.array(3), "x": X})
    np.testing.assert_array_equal(found["last"], [1, 2, 3, 0, 1, 2])


def test_the_body_of_a_loop_is_split_over_devices() -> None:
    graph = looping(doubling_body(limit=50))
    plan = pl.plan(graph, ["cpu", "worker:0"], pin={"loop/double": "worker:0"})
    assert plan.assignment["loop/double"] == "worker:0"
    assert plan.assignment["loop"] == "session"
    found = pl.run(plan, {"trips": np.array(100), "x": X})
    np.testing.assert_array_equal(found["last"], doubled(X, 100, limit=50)[0])


async def test_items_of_a_stream_loop_side_by_side() -> None:
    graph = looping(doubling_body(limit=1000))
    plan = pl.plan(graph, max_in_flight=3)
    items = [{"trips": np.array(100), "x": X * i} for i in range(8)]
    async with pl.Session(plan) as session, session.stream(items) as results:
        found = [item["last"] async for item in results]
    for item, last in zip(items, found, strict=True):
        np.testing.assert_array_equal(last, doubled(item["x"], 100, limit=1000)[0])


async def test_an_endless_loop_can_be_cancelled() -> None:
    async with pl.Session(pl.plan(looping(doubling_body()))) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, {"trips": np.array(10**9), "x": X})
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        found = await session.run({"trips": np.array(2), "x": X})
    np.testing.assert_array_equal(found["last"], doubled(X, 2)[0])


async def test_closing_a_session_ends_its_loops() -> None:
    graph = looping(doubling_body())
    outcomes: list[object] = []

    async def run(session: pl.Session) -> None:
        try:
            await session.run({"trips": np.array(10**9), "x": X})
        except pl.SessionError as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        async with pl.Session(pl.plan(graph)) as session:
            nursery.start_soon(run, session)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
    assert len(outcomes) == 1


async def test_an_error_inside_of_a_body_is_the_items() -> None:
    b = pl.GraphBuilder("reshaped")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    state = b.input("state", "float32", ("n",))
    length = b.op("Reshape", b.op("Add", step, np.int64(3)), np.array([1]))
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Reshape", state, length, name="fit"))
    graph = looping(b.build())
    async with pl.Session(pl.plan(graph)) as session:
        found = await session.run({"trips": np.array(1), "x": X})
        np.testing.assert_array_equal(found["last"], X)
        with pytest.raises(pl.ShapeError, match="'loop/1/fit'"):
            await session.run({"trips": np.array(2), "x": X})


def test_what_no_device_can_run_inside_of_a_body_is_named_when_planning() -> None:
    class Useless:
        name = "useless"
        capabilities = pl.devices.Capabilities()

        def supports(self, node: pl.Node, call: object) -> pl.devices.Support:
            return pl.devices.Support(node.op != "Mul", "cannot multiply")

    with pytest.raises(pl.UnsupportedOpError, match=r"'loop/mul\.\d' \(Mul\)"):
        pl.plan(looping(doubling_body()), [Useless()])  # type: ignore[list-item]


# Scan


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(1, 4),
    axes=st.tuples(st.sampled_from([0, 1, -1]), st.sampled_from([0, 1, -1])),
    backwards=st.tuples(st.booleans(), st.booleans()),
    unrolled=st.booleans(),
)
def test_a_scan_runs_over_any_axis_in_any_direction(
    length: int, axes: tuple[int, int], backwards: tuple[bool, bool], unrolled: bool
) -> None:
    rng = np.random.default_rng(length)
    rows = rng.standard_normal((length, 2)).astype(np.float32)
    b = pl.GraphBuilder("scanning")
    x = b.input("x", "float32", np.moveaxis(rows, 0, axes[0]).shape)
    total, squares = b.op(
        "Scan",
        np.zeros(2, np.float32),
        x,
        body=running_sum_body(),
        num_scan_inputs=1,
        scan_input_axes=[axes[0]],
        scan_output_axes=[axes[1]],
        scan_input_directions=[int(backwards[0])],
        scan_output_directions=[int(backwards[1])],
        outputs=2,
    )
    b.output("total", total)
    b.output("squares", squares)
    walked = rows[::-1] if backwards[0] else rows
    sums = np.cumsum(walked, axis=0, dtype=np.float32)
    wanted = (sums**2)[:: -1 if backwards[1] else 1]
    with pytest.MonkeyPatch.context() as patch:
        if not unrolled:
            patch.setattr(inlining, "UNROLLED_NODES", 0)
        found = pl.run(b.build(), {"x": np.moveaxis(rows, 0, axes[0])})
    np.testing.assert_allclose(found["total"], sums[-1], rtol=1e-6)
    np.testing.assert_allclose(found["squares"], np.moveaxis(wanted, 0, axes[1]), rtol=1e-5)


def test_a_loop_in_a_branch_of_a_loop_works() -> None:
    inner = looping(doubling_body(limit=1e6), trips=2)
    b = pl.GraphBuilder("outer")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    state = b.input("state", "float32", ("n",))
    b.output("goes_on", b.op("Identity", going))
    even = b.op("Equal", b.op("Mod", step, np.int64(2)), np.int64(0))
    last = pl.GraphBuilder("last")
    results = last.include(inner, {"x": last.input("x", "float32", ("n",))})
    last.output("y", results["last"])
    then, other = last.build(), scaled("else", -1)
    b.output("next", b.op("If", even, state, then_branch=then, else_branch=other))
    found = pl.run(looping(b.build()), {"trips": np.array(3), "x": X})
    wanted = doubled(-doubled(X, 2)[0], 2)[0]
    np.testing.assert_array_equal(found["last"], wanted)
