"""Inputs of ever new lengths: after a few, items are bound to theirs in a plan with room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.ort.session import Session, Sessions
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner import planner
from plait.scheduler.runtime.opened import ample_bounds, resized_plans
from plait.scheduler.runtime.opened.ample_bounds import FEW_SHAPES
from varying_shapes import (
    WIDTH,
    open_graphs,
    read_half,
    read_half_by_numpy,
    rows,
    two_steps,
    two_steps_by_numpy,
)

MOST = 60
FIRST = [7, 31, 12, 5, 44, 9, 23, 17, 40, 3]
"""Ten lengths, after which sessions know enough."""

DEVICES = ["cpu", ["ort", "cpu"], ["ort", "compiled", "cpu"]]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of calls that plan, or open plans for some lengths, from now on."""
    calls: list[str] = []

    def watch(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return call(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(planner, "make_plan")
    watch(resized_plans.ResizedPlans, "make")
    return calls


def run_formally(graph: Graph, inputs: dict[str, Array]) -> Any:
    shapes = {name: array.shape for name, array in inputs.items()}
    return pl.run(pl.plan(graph, "formal", shapes=shapes), inputs)


@pytest.mark.parametrize("bounds", [None, {"n": MOST}], ids=["open", "bounds"])
@pytest.mark.parametrize("devices", DEVICES, ids=str)
def test_new_lengths_need_no_plan_after_ten(devices: Any, bounds: Any, planned: list[str]) -> None:
    with pl.BlockingSession(pl.plan(two_steps(), devices, bounds=bounds)) as session:
        for length in FIRST:
            session.run(rows(length))
        planned.clear()
        for length in (8, 19, 2, 30, 43, 38, 11, 27):
            found = session.run(rows(length))["y"]
            np.testing.assert_allclose(found, two_steps_by_numpy(rows(length)["x"]), rtol=1e-5)
    assert not planned


def test_models_that_read_lengths_are_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is fed the constants that follow from lengths."""
    compiled, of = list[int](), Sessions.of

    def watched(self: Sessions, *args: Any) -> Session:
        compiled.append(1)
        return of(self, *args)

    monkeypatch.setattr(Sessions, "of", watched)

    def load(length: int) -> Array:
        return rows(length)["x"]

    model = pl.step(read_half(), device="ort")
    with pl.pipeline(load, model, examples=[31, 44]) as pipe:
        for length in FIRST:
            pipe.run(length)
        compiled.clear()
        for length in (8, 19, 30, 43, 38, 11, 27, 8):
            np.testing.assert_array_equal(pipe.run(length), read_half_by_numpy(load(length)))
    assert not compiled


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES, ids=str)
@settings(max_examples=3, deadline=None)
@given(
    graph=open_graphs(),
    lengths=st.lists(st.integers(1, MOST), min_size=12, max_size=24),
    bounded=st.booleans(),
)
def test_items_of_any_lengths_have_the_right_results(
    devices: Any, graph: Graph, lengths: list[int], bounded: bool
) -> None:
    plan = pl.plan(graph, devices, bounds={"n": MOST} if bounded else None)
    with pl.BlockingSession(plan) as session:
        for length in (*FIRST, *lengths):
            found, wanted = session.run(rows(length)), run_formally(graph, rows(length))
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("devices", ["cpu", ["cpu:0..1"], ["cpu", "ort"]], ids=str)
async def test_streams_of_new_lengths_have_the_right_results(devices: Any) -> None:
    lengths = [1 + 37 * place % 97 for place in range(97)]
    async with pl.Session(pl.plan(two_steps(), devices, max_in_flight=3)) as session:
        async with session.stream(rows(length, length) for length in lengths) as results:
            async for item in results:
                x = rows(lengths[item.index], lengths[item.index])["x"]
                np.testing.assert_allclose(item["y"], two_steps_by_numpy(x), rtol=1e-5)


def test_one_plan_with_room_is_open_at_a_time() -> None:
    with pl.BlockingSession(pl.plan(two_steps())) as session:
        for length in range(1, 200):
            found = session.run(rows(length))["y"]
            np.testing.assert_allclose(found, two_steps_by_numpy(rows(length)["x"]), rtol=1e-5)
        assert list_bounds(session) == [{"n": (1, list_bounds(session)[0]["n"][1])}]
        assert 199 <= list_bounds(session)[0]["n"][1] < 400


def list_bounds(session: pl.BlockingSession) -> list[Any]:
    """Return the bounds of the open plans that have some."""
    runtime: Any = session._loop.session._runtime
    return [dict(plan.bounds) for plan in runtime._open_plans.plans if plan.bounds]


def test_lengths_that_are_long_by_turns_keep_their_own_plans() -> None:
    """One plan for both would take a hundred times their memory."""
    b = pl.GraphBuilder("outer")
    x, y = b.input("x", "float32", ("n", 1)), b.input("y", "float32", (1, "m"))
    b.output("z", (x * y).relu())
    with pl.BlockingSession(pl.plan(b.build())) as session:
        for extra in range(3 * FEW_SHAPES):
            lengths = (4000 + extra, 2) if extra % 2 else (2, 4000 + extra)
            feeds = {"x": np.ones((lengths[0], 1), "f4"), "y": np.ones((1, lengths[1]), "f4")}
            assert session.run(feeds)["z"].shape == lengths
        assert list_bounds(session) == []


@pytest.mark.parametrize("devices", DEVICES, ids=str)
def test_graphs_of_many_nodes_have_a_plan_with_room_where_lengths_vary(
    devices: Any, planned: list[str]
) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((3, 3), np.float32) / 2 for _ in range(20)]
    b = pl.GraphBuilder("deep")
    last = b.input("x", "float32", ("batch", "n", 3))
    for weight in weights:
        last = (last @ weight).relu() + np.float32(0.1)
    b.output("y", last)
    with pl.BlockingSession(pl.plan(b.build(), devices)) as session:
        for place, length in enumerate([*FIRST, 8, 19, 2, 30, 43]):
            if place == len(FIRST):
                planned.clear()
            wanted = x = rng.standard_normal((2, length, 3), np.float32)
            for weight in weights:
                wanted = np.maximum(wanted @ weight, 0) + np.float32(0.1)
            np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-6)
        assert "make_plan" not in planned
        assert [one["batch"] for one in list_bounds(session)] == [(2, 2)]
        session.run({"x": np.ones((3, 5, 3), np.float32)})
        assert "make_plan" in planned
        assert [one["batch"] for one in list_bounds(session)] == [(1, 5)]


def test_a_plan_with_room_follows_lengths_that_grow(
    planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ample_bounds, "SMALL_NBYTES", 0)
    with pl.BlockingSession(pl.plan(two_steps())) as session:
        for length in (*range(1, 20), *range(900, 930)):
            if length == 915:
                planned.clear()
            found = session.run(rows(length))["y"]
            np.testing.assert_allclose(found, two_steps_by_numpy(rows(length)["x"]), rtol=1e-5)
        assert not planned
        assert [one["n"][1] for one in list_bounds(session)] == [1361]


def test_models_that_take_multiples_get_room_for_multiples() -> None:
    b = pl.GraphBuilder("pairs")
    x = b.input("x", "float32", ("n", WIDTH))
    b.output("y", x.reshape((-1, 12 * WIDTH)).relu())
    with pl.BlockingSession(pl.plan(b.build())) as session:
        for count in (3, 7, 4, 11, 5, 9, 2, 8, 6, 10, 13, 29, 1):
            fed = rows(12 * count)
            found = session.run(fed)["y"]
            np.testing.assert_array_equal(found, np.maximum(fed["x"], 0).reshape(count, -1))
        (bounds,) = list_bounds(session)
        assert bounds["n"][1] % 12 == 0


def test_empty_inputs_have_plans_of_their_own() -> None:
    with pl.BlockingSession(pl.plan(two_steps())) as session:
        for length in (*FIRST, 0, 1, 20, 0):
            found = session.run(rows(length))["y"]
            np.testing.assert_allclose(found, two_steps_by_numpy(rows(length)["x"]), rtol=1e-5)


def make_networks() -> Iterator[tuple[str, Graph]]:
    b = pl.GraphBuilder("pooled")
    x = b.input("x", "float32", (1, 1, "h", "w"))
    h = x.conv(np.ones((2, 1, 3, 3), "f4") / 9, pads=(1, 1, 1, 1)).relu()
    b.output("y", b.op("MaxPool", h, kernel_shape=(2, 2), strides=(2, 2)))
    yield "pooled", b.build()
    b = pl.GraphBuilder("attention")
    x = b.input("x", "float32", ("n", WIDTH))
    b.output("y", (x @ b.op("Transpose", x)).softmax() @ x)
    yield "attention", b.build()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "graph"), list(make_networks()))
@pytest.mark.parametrize("devices", DEVICES, ids=str)
def test_lengths_of_two_axes_and_computed_lengths(name: str, graph: Graph, devices: Any) -> None:
    rng = np.random.default_rng(0)
    with pl.BlockingSession(pl.plan(graph, devices)) as session:
        for place in range(13):
            lengths = (1, 1, 6 + place, 4 + 7 * place % 23)
            shape = lengths if name == "pooled" else (lengths[3], WIDTH)
            fed = {"x": rng.random(shape, "float32")}
            wanted = run_formally(graph, fed)["y"]
            np.testing.assert_allclose(session.run(fed)["y"], wanted, rtol=1e-4, atol=1e-6)
