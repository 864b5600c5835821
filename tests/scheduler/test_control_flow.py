"""If, Loop and Scan: taken into the plan where they are decided ahead, else run by the session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_graphs import doubled, doubling_body, growing_body, running_sum_body, scaled
from plait.graph.core import nested
from plait.graph.core.infer import infer_shapes
from plait.graph.core.ir import Graph
from plait.scheduler.runtime.opened.copying import Feeds
from plait.scheduler.shapes import inlining

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
    plan = pl.plan(b.build(), "formal")
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


def test_a_branch_that_does_not_fit_is_a_mistake_when_it_is_entered() -> None:
    b = pl.GraphBuilder("of one")
    one = b.op("Squeeze", b.input("x", "float32", ("n",)), np.array([0]))
    b.output("y", b.op("Unsqueeze", one, np.array([0])))
    graph = branching(scaled("then", 2), b.build())
    found = pl.run(graph, {"cond": np.array(True), "x": X})
    np.testing.assert_array_equal(found["y"], -X * 2)
    with pytest.raises(pl.ShapeError, match=r"\[3\]"):
        pl.run(graph, {"cond": np.array(False), "x": X})


def test_a_condition_of_two_values_is_refused() -> None:
    b = pl.GraphBuilder("branching")
    cond, x = b.input("cond", "bool", ("k",)), b.input("x", "float32", (3,))
    b.output("y", b.op("If", cond, x, then_branch=scaled("a", 2), else_branch=scaled("b", 3)))
    with pytest.raises(pl.ShapeError, match=r"the condition is bool\[2\], not one value"):
        pl.run(b.build(), {"cond": np.ones(2, bool), "x": X})


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


def in_loops(body: Graph, levels: int, trips: int | None) -> Graph:
    """Return a body of Loop whose state goes through loops in each other, the given one inmost."""
    for _ in range(levels):
        b = pl.GraphBuilder("outer")
        step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
        state = b.input("state", "float32", ("n",))
        count = step if trips is None else np.int64(trips)
        b.output("goes_on", b.op("Identity", going))
        b.output("next", b.op("Loop", count, np.bool_(True), state, body=body))
        body = b.build()
    return body


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "trips"), [(1, 2), (3, 20), (7, 3)])
def test_loops_in_loops_become_few_nodes_together(levels: int, trips: int) -> None:
    b = pl.GraphBuilder("inmost")
    _, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    state = b.input("state", "float32", ("n",))
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Add", state, np.float32(1)))
    plan = pl.plan(looping(in_loops(b.build(), levels, trips), trips=trips), shapes={"x": (3,)})
    assert len(plan.graph.nodes) <= (levels + 1) * inlining.UNROLLED_NODES
    if trips ** (levels + 1) < 1000:
        last = pl.run(plan, {"x": X})["last"]
        np.testing.assert_array_equal(last, X + trips ** (levels + 1))


def test_lengths_that_grow_in_loops_in_loops_take_no_exponential_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, called = 0, nested.call_graph

    def counted(*arguments: Any) -> Graph:
        nonlocal asked
        asked += 1
        return called(*arguments)

    monkeypatch.setattr(nested, "call_graph", counted)
    counts = []
    for levels in (5, 10):
        graph = looping(in_loops(growing_body(), levels, None))
        asked, x = 0, pl.TensorSpec("float32", (3,))
        infer_shapes(replace(graph, tensors={**graph.tensors, "x": x}))
        counts.append(asked)
    assert counts[1] <= 8 * counts[0], "cubic, not twice as many for each level"


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_long_loop_is_run_body_by_body(trips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", 0)
    last, rows = doubled(X, trips)
    plan = pl.plan(looping(doubling_body()), "formal")
    found = pl.run(plan, {"trips": np.array(trips), "x": X})
    np.testing.assert_array_equal(found["last"], last)
    np.testing.assert_array_equal(found["rows"].reshape(rows.shape if trips else (0, 3)), rows)


def test_a_loop_ends_when_its_condition_says_so() -> None:
    last, rows = doubled(X, 100, limit=50)
    found = pl.run(looping(doubling_body(limit=50)), {"trips": np.array(100), "x": X})
    np.testing.assert_array_equal(found["last"], last)
    np.testing.assert_array_equal(found["rows"], rows)
    assert len(rows) < 10


@pytest.mark.parametrize("cond", [True, False])
def test_a_loop_of_known_length_need_not_start(cond: bool) -> None:
    b = pl.GraphBuilder("maybe")
    goes, x = b.input("cond", "bool", ()), b.input("x", "float32", (3,))
    last, rows = b.op("Loop", np.int64(4), goes, x, body=doubling_body(), outputs=2)
    b.output("last", b.op("Identity", last))
    b.output("rows", b.op("Neg", rows))
    assert b.build().tensors["rows"].shape != (4, 3)
    found = pl.run(b.build(), {"cond": np.array(cond), "x": X})
    last, rows = doubled(X, 4 if cond else 0)
    np.testing.assert_array_equal(found["last"], last)
    np.testing.assert_array_equal(found["rows"], -rows.reshape(-1, 3))


@pytest.mark.parametrize("limit", [0, inlining.UNROLLED_NODES])
def test_outputs_at_the_end_may_be_left_out(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", limit)
    b = pl.GraphBuilder("short")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Loop", np.int64(2), None, x, body=doubling_body(), outputs=1))
    np.testing.assert_array_equal(pl.run(b.build(), {"x": X})["y"], doubled(X, 2)[0])


def capturing_body() -> Graph:
    """Return a body of Loop without states: puts out the product of two captured tensors."""
    b = pl.GraphBuilder("capturing")
    b.input("step", "int64", ())
    b.output("goes_on", b.op("Identity", b.input("going", "bool", ())))
    weight, x = b.input("weight", "float32", ("n",)), b.input("x", "float32", ("n",))
    b.output("row", b.op("Mul", weight, x))
    b.output("weight_itself", weight)
    return b.build()


@pytest.mark.parametrize("trips", [0, 2])
async def test_constants_that_a_body_captures_are_not_fed(
    trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", 0)
    fed: list[set[str]] = []
    write = Feeds.write

    def noted(feeds: Feeds, arrays: Mapping[str, np.ndarray]) -> None:
        fed.append(set(arrays))
        write(feeds, arrays)

    monkeypatch.setattr(Feeds, "write", noted)
    b = pl.GraphBuilder("captured")
    x, count = b.input("x", "float32", (3,)), b.input("trips", "int64", ())
    weight = np.array([3, 5, 7], np.float32)
    rows, weights = b.op(
        "Loop", count, None, weight, x, body=capturing_body(), captured=2, outputs=2
    )
    b.output("rows", rows)
    b.output("weights", weights)
    async with pl.Session(pl.plan(b.build(), "formal")) as session:
        found = await session.run({"x": X, "trips": np.array(trips)})
    np.testing.assert_array_equal(found["rows"], np.array([X * weight] * trips).reshape(trips, 3))
    np.testing.assert_array_equal(found["weights"], np.array([weight] * trips).reshape(trips, 3))
    assert not any("weight" in names for names in fed)
    assert len(fed) == trips


@pytest.mark.parametrize("limit", [0, inlining.UNROLLED_NODES])
def test_a_loop_needs_no_more_than_a_trip_count(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", limit)
    b = pl.GraphBuilder("squares")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    b.output("goes_on", b.op("Identity", going))
    b.output("square", b.op("Mul", step, step))
    body = b.build()
    b = pl.GraphBuilder("counting")
    b.output("y", b.op("Loop", b.input("trips", "int64", ()), body=body))
    found = pl.run(b.build(), {"trips": np.array(4)})
    np.testing.assert_array_equal(found["y"], [0, 1, 4, 9])


def test_rows_of_different_shapes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", 0)
    b = pl.GraphBuilder("ragged")
    b.input("step", "int64", ())
    going, state = b.input("going", "bool", ()), b.input("state", "float32", ("n",))
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Concat", state, state, axis=0))
    b.output("row", b.op("Identity", state))
    with pytest.raises(pl.ShapeError, match=r"shapes \[3\] and \[6\](.|\n)*node 'loop'"):
        pl.run(looping(b.build()), {"trips": np.array(2), "x": X})


@pytest.mark.parametrize("limit", [0, inlining.UNROLLED_NODES])
def test_many_states_that_pass_a_change_on_settle(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", limit)
    b = pl.GraphBuilder("chain")
    b.input("step", "int64", ())
    going = b.input("going", "bool", ())
    states = [b.input(f"s{i}", "float32", ("n",)) for i in range(12)]
    b.output("goes_on", b.op("Identity", going))
    b.output("t0", b.op("Concat", states[0], np.zeros(1, np.float32), axis=0))
    for i, state in enumerate(states[:-1]):
        b.output(f"t{i + 1}", b.op("Identity", state))
    body = b.build()
    b = pl.GraphBuilder("chained")
    x, trips = b.input("x", "float32", (3,)), b.input("trips", "int64", ())
    *_, last = b.op("Loop", trips, None, *[x] * 12, body=body, outputs=12)
    b.output("y", b.op("Neg", last))
    found = pl.run(b.build(), {"x": X, "trips": np.array(14)})
    np.testing.assert_array_equal(found["y"], -np.append(X, [0, 0, 0]))


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


def test_pins_of_a_body_hold_in_every_iteration_of_an_unrolled_loop() -> None:
    graph = looping(doubling_body(), trips=2)
    pins = {"loop/double": "worker:0"}
    devices = ["cpu", "worker:0"]
    plan = pl.plan(graph, devices, pin=pins, shapes={"x": (3,)}, strategy="preference")
    pinned = [name for name, device in plan.assignment.items() if device == "worker:0"]
    assert pinned == ["loop[0]/double", "loop[1]/double"]


def test_a_condition_that_grows_ends_the_item() -> None:
    b = pl.GraphBuilder("body")
    b.input("step", "int64", ())
    b.input("going", "bool", ())
    state = b.input("state", "float32", ("n",))
    b.output("goes_on", b.op("Greater", state, np.float32(0)))
    b.output("next", b.op("Concat", state, state, axis=0))
    with pytest.raises(pl.ShapeError, match=r"shape \[2\], not one value(.|\n)*node 'loop'"):
        pl.run(looping(b.build()), {"trips": np.array(9), "x": X[:1]})


def test_a_loop_itself_cannot_be_pinned() -> None:
    with pytest.raises(pl.PlanError, match=r"runs on no device(.|\n)*'loop/\*'"):
        pl.plan(looping(doubling_body()), pin={"loop": "cpu"})


async def test_items_of_a_stream_loop_side_by_side() -> None:
    graph = looping(doubling_body(limit=1000))
    plan = pl.plan(graph, max_in_flight=3)
    items = [{"trips": np.array(100), "x": X * i} for i in range(8)]
    async with pl.Session(plan) as session, session.stream(items) as results:
        found = [item["last"] async for item in results]
    for item, last in zip(items, found, strict=True):
        np.testing.assert_array_equal(last, doubled(item["x"], 100, limit=1000)[0])


async def test_an_endless_loop_can_be_cancelled() -> None:
    async with pl.Session(pl.plan(looping(doubling_body(rows=False)))) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, {"trips": np.array(10**9), "x": X})
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        found = await session.run({"trips": np.array(2), "x": X})
    np.testing.assert_array_equal(found["last"], doubled(X, 2)[0])


async def test_closing_a_session_ends_its_loops() -> None:
    graph = looping(doubling_body(rows=False))
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
        with pytest.raises(pl.ShapeError, match=r"'loop\[1\]/fit'"):
            await session.run({"trips": np.array(2), "x": X})


TAPPED: list[float] = []


@pl.operator(lambda x: [x], name="test_control_flow.tap", effects=True)
def tap(x: np.ndarray) -> np.ndarray:
    TAPPED.append(float(x[0]))
    return x


@pytest.mark.parametrize("limit", [0, inlining.UNROLLED_NODES])
def test_effects_in_a_loop_happen_though_nobody_reads_its_results(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlining, "UNROLLED_NODES", limit)
    b = pl.GraphBuilder("tapping")
    b.input("step", "int64", ())
    going, state = b.input("going", "bool", ()), b.input("state", "float32", ("n",))
    b.call(tap, state)
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Neg", state))
    body = b.build()
    b = pl.GraphBuilder("unread")
    x = b.input("x", "float32", (3,))
    b.op("Loop", np.int64(3), None, x, body=body)
    b.output("y", b.op("Neg", x))
    TAPPED.clear()
    pl.run(b.build(), {"x": X})
    assert TAPPED == [1, -1, 1]


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


def test_scanned_inputs_of_different_lengths_are_refused() -> None:
    b = pl.GraphBuilder("pairs")
    first, second = b.input("first", "int64", ("r",)), b.input("second", "int64", ("r",))
    b.output("sum", b.op("Add", first, second))
    body = b.build()
    b = pl.GraphBuilder("scanning")
    found = [b.op("NonZero", b.input(name, "float32", (3,))) for name in ("x", "y")]
    pairs = b.op("Scan", *found, body=body, num_scan_inputs=2, scan_input_axes=[1, 1], name="scan")
    b.output("pairs", pairs)
    with pytest.raises(pl.ShapeError, match=r"lengths 3 and 2(.|\n)*node 'scan'"):
        pl.run(b.build(), {"x": X, "y": X - 1})


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
