"""Fetched tensors, and nothing else, are computed; plans for them are found again."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_devices import PrivateDevice
from foreign_arrays import Library
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES
from plait.graph.values.tensor import Array
from plait.scheduler.planner import planner
from plait.scheduler.runtime.opened import fetch_plan_cache, open_plans
from random_graphs import expected, feeds, graphs

ran: list[str] = []
"""The effects that took place."""


@pl.operator(name="test_fetches.noted", effects=True)
def noted(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ran.append("noted")
    return x.copy()


def two_paths(length: int | str = 2) -> Graph:
    """Return y = relu(a) + c and z = tanh(b) * relu(a), with c a constant."""
    b = pl.GraphBuilder("paths")
    left = b.op("Relu", b.input("a", "float32", (length,)), name="left")
    right = b.op("Tanh", b.input("b", "float32", (length,)), name="right")
    b.output("y", b.op("Add", left, b.constant(np.ones(1, np.float32), "c")))
    b.output("z", b.op("Mul", left, right))
    return b.build()


A = np.array([-1, 3], np.float32)
B = np.array([0, 5], np.float32)
BOTH = {"a": A, "b": B}
LEFT, Y = np.array([0, 3], np.float32), np.array([1, 4], np.float32)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Return the graphs that are planned from now on."""
    found: list[Graph] = []
    make_plan = planner.make_plan

    def listening(graph: Graph, *arguments: Any) -> pl.Plan:
        found.append(graph)
        return make_plan(graph, *arguments)

    monkeypatch.setattr(planner, "make_plan", listening)
    return found


# the form of what is fetched

Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("fetches", "wanted"),
    [
        ("y", Y),
        (["y"], [Y]),
        (("y", "left"), (Y, LEFT)),
        ({"out": "y", 3: ["left", ("a", "c")]}, {"out": Y, 3: [LEFT, (A, np.ones(1))]}),
        (["left", "left"], [LEFT, LEFT]),
        (Pair("y", "left"), Pair(Y, LEFT)),
    ],
)
async def test_results_have_the_form_of_what_is_fetched(fetches: Any, wanted: Any) -> None:
    def check(found: Any, like: Any) -> None:
        assert type(found) is type(like)
        if isinstance(like, dict):
            assert found.keys() == like.keys()
            found, like = list(found.values()), list(like.values())
        if isinstance(like, list | tuple):
            for one, other in zip(found, like, strict=True):
                check(one, other)
        else:
            np.testing.assert_array_equal(found, like)

    async with pl.Session(pl.plan(two_paths())) as session:
        check(await session.run({"a": A}, fetches), wanted)


async def test_a_group_is_none() -> None:
    b = pl.GraphBuilder("grouped")
    y = b.op("Relu", b.input("x", "float32", (2,)), name="y")
    b.output("all", b.group(y, b.op("Neg", y)))
    async with pl.Session(pl.plan(b.build())) as session:
        found = await session.run({"x": A}, {"done": "all", "y": ["y"]})
        assert found["done"] is None
        np.testing.assert_array_equal(found["y"][0], LEFT)


async def test_a_list_that_is_changed_later_changes_no_stream() -> None:
    fetches = ["y"]
    async with (
        pl.Session(pl.plan(two_paths())) as session,
        session.stream([{"a": A}] * 2, fetches=fetches) as results,
    ):
        fetches.append("nothing")
        assert [len(item.fetched) async for item in results] == [1, 1]


@pytest.mark.parametrize(
    ("fetches", "message"),
    [
        ("lift", "graph 'paths' has no tensor 'lift'(.|\n)*did you mean 'left'"),
        (["y", "#"], "has no tensor '#'(.|\n)*such as 'y', 'z'"),
        ([], "nothing is fetched"),
        ({"a": ()}, "nothing is fetched"),
        (["y", 3], "a int is fetched, which is not the name of a tensor"),
        ({"y"}, "which is not the name of a tensor"),
    ],
)
async def test_what_cannot_be_fetched_is_named(fetches: Any, message: str) -> None:
    async with pl.Session(pl.plan(two_paths())) as session:
        with pytest.raises(pl.FetchError, match=message):
            await session.run(BOTH, fetches)
        with pytest.raises(pl.FetchError, match=message):
            async with session.stream([BOTH], fetches=fetches):
                pass
        np.testing.assert_array_equal((await session.run(BOTH))["y"], Y)


# only what is needed


async def test_only_what_is_fetched_is_fed() -> None:
    async with pl.Session(pl.plan(two_paths())) as session:
        np.testing.assert_array_equal(await session.run({"a": A}, "y"), Y)
        np.testing.assert_array_equal(await session.run(BOTH, "y"), Y)
        np.testing.assert_array_equal(await session.run({"a": A, "b": "anything"}, "y"), Y)
        for fed, message in (
            ({}, r"no value for input 'a': float32\[2\]"),
            ({"b": B}, "no value for input 'a'"),
            ({"a": A, "other": B}, "no input 'other'"),
            ({**BOTH, "other": B}, "no input 'other'"),
        ):
            with pytest.raises(pl.FeedError, match=message):
                await session.run(fed, "y")
        with pytest.raises(pl.FeedError, match="no value for input 'b'"):
            await session.run({"a": A})


async def test_effects_take_place_if_they_are_fetched_or_nothing_is_named() -> None:
    b = pl.GraphBuilder("effects")
    x = b.input("x", "float32", (2,))
    b.call(noted, x, name="effect", outputs=["effect"])
    b.output("y", b.op("Relu", x))
    ran.clear()
    async with pl.Session(pl.plan(b.build())) as session:
        await session.run({"x": A}, "y")
        assert not ran
        await session.run({"x": A})
        assert len(ran) == 1
        assert (await session.run({"x": A}, "effect")).tolist() == A.tolist()
        assert len(ran) == 2


async def test_an_effect_that_is_needed_takes_place() -> None:
    b = pl.GraphBuilder("needed")
    made = b.call(noted, b.input("x", "float32", (2,)))
    b.output("y", b.op("Relu", made, name="y"))
    b.output("z", b.op("Neg", b.input("other", "float32", (2,))))
    ran.clear()
    async with pl.Session(pl.plan(b.build())) as session:
        await session.run({"x": A}, "y")
    assert len(ran) == 1


@settings(max_examples=30)
@given(graph=graphs(), data=st.data())
def test_any_tensor_is_what_it_is_without_passes(graph: Graph, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(graph.tensors)), min_size=1, max_size=4))
    fed = feeds(graph)
    wanted = expected(replace(graph, outputs=tuple(names)), fed)
    found = pl.run(pl.plan(graph), fed, fetches={name: name for name in names})
    for name in names:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_the_plan_for_a_tensor_has_only_what_it_needs() -> None:
    plan = pl.plan(two_paths())
    part = plan.fetching("left")
    assert [node.op for node in part.graph.nodes] == ["Relu"]
    assert (part.graph.inputs, part.graph.outputs) == (("a",), ("left",))
    assert part.unneeded == {"b"}
    assert not plan.unneeded
    assert part.fetching("left") is part
    assert part.fetching("a").unneeded == {"b"}
    with pytest.raises(pl.FetchError):
        part.fetching("z")
    with pytest.raises(pl.FetchError, match="which is not the name of a tensor"):
        part.fetching(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("fetches", ["left", ["z", "left"], ("z", {1: "left", 2: ["a"]})])
def test_plans_are_asked_for_tensors_as_runs_are(fetches: Any) -> None:
    plan = pl.plan(two_paths())
    part = plan.fetching(fetches)
    fetched = pl.run(part, {name: BOTH[name] for name in part.graph.inputs}, fetches=fetches)
    whole = pl.run(plan, BOTH, fetches=fetches)
    assert repr(fetched) == repr(whole)
    assert plan.fetching(["z", "left"], "a").graph.outputs == ("z", "left", "a")


@pytest.mark.parametrize("arguments", [{}, {"bounds": {"n": 4}}])
async def test_a_plan_for_some_tensors_can_be_fed_as_the_whole_one(
    arguments: Any, tmp_path: Path
) -> None:
    part = pl.plan(two_paths("n"), **arguments).fetching("left")
    part.save(tmp_path / "part")
    for plan in (
        part,
        part.for_shapes({"a": (2,)}),
        part.replan(2),
        pl.load_plan(tmp_path / "part"),
    ):
        async with pl.Session(plan) as session:
            for fed in (BOTH, {"a": A}):
                assert (await session.run(fed))["left"].tolist() == LEFT.tolist()


def test_the_plan_for_all_outputs_is_the_plan_itself() -> None:
    plan = pl.plan(two_paths())
    assert plan.fetching("z", "y") is plan
    assert plan.fetching("z", "y", "a") is not plan
    b = pl.GraphBuilder("effects")
    x = b.input("x", "float32", (2,))
    b.call(noted, x)
    b.output("y", b.op("Relu", x))
    aside = pl.plan(b.build())
    assert aside.fetching("y") is not aside, "it has an effect beside"


def test_what_passes_removed_can_be_fetched() -> None:
    b = pl.GraphBuilder("merged")
    x = b.input("x", "float32", (4, 4))
    product = b.op("MatMul", x, np.eye(4, dtype=np.float32), name="product")
    b.output("y", b.op("Relu", b.op("Add", product, np.ones(4, np.float32), name="sum")))
    plan = pl.plan(b.build(), passes=PASSES)
    assert "product" not in plan.graph.tensors, "this test shows nothing"
    fed = np.arange(16, dtype=np.float32).reshape(4, 4) - 8
    product, total = pl.run(plan, {"x": fed}, fetches=["product", "sum"])
    np.testing.assert_array_equal(product, fed)
    np.testing.assert_array_equal(total, fed + 1)


def test_of_a_plan_from_a_file_what_it_has_can_be_fetched(tmp_path: Path) -> None:
    pl.plan(two_paths()).save(tmp_path / "saved")
    loaded = pl.load_plan(tmp_path / "saved")
    np.testing.assert_array_equal(pl.run(loaded, {"a": A}, fetches="left"), LEFT)
    with pytest.raises(pl.FetchError, match="no tensor 'gone'"):
        loaded.fetching("gone")


# plans of all kinds


@pytest.mark.parametrize("arguments", [{}, {"shapes": {"a": (2,)}}, {"bounds": {"n": (1, 4)}}])
async def test_shapes_may_be_open_fixed_or_bounded(arguments: Any) -> None:
    plan = pl.plan(two_paths("n"), **arguments)
    async with pl.Session(plan) as session:
        for length in (2,) if "shapes" in arguments else (2, 3, 2):
            fed = {"a": np.arange(-1, length - 1, dtype=np.float32)}
            left = await session.run(fed, "left")
            np.testing.assert_array_equal(left, np.maximum(fed["a"], 0))
        if arguments:
            with pytest.raises(pl.FeedError):
                await session.run({"a": np.ones(5, np.float32)}, "left")


async def test_shapes_may_depend_on_values() -> None:
    b = pl.GraphBuilder("values")
    x = b.input("x", "float32", ("n",))
    chosen = b.op("NonZero", x, name="chosen")
    b.output("y", b.op("Neg", chosen, name="y"))
    b.output("z", b.op("Relu", b.input("other", "float32", (2,))))
    async with pl.Session(pl.plan(b.build())) as session:
        for values in ([1, 0, 2], [0, 0, 3], [1, 1, 1]):
            fed = {"x": np.array(values, np.float32)}
            found = await session.run(fed, ["chosen", "y"])
            np.testing.assert_array_equal(found[0], [np.flatnonzero(fed["x"])])
            np.testing.assert_array_equal(found[1], -found[0])


async def test_several_devices_and_replicas_fetch() -> None:
    device = PrivateDevice("private")
    plan = pl.plan(two_paths(), ["cpu", device], pin={"left": "private"})
    async with pl.Session(plan) as session:
        np.testing.assert_array_equal(await session.run({"a": A}, "left"), LEFT)
        np.testing.assert_array_equal(await session.run({"a": A}, "y"), Y)
    assert plan.fetching("left").assignment == {"left": "private"}


@pytest.mark.slow
async def test_replicas_take_turns_with_what_is_fetched() -> None:
    plan = pl.plan(two_paths(), "worker:0..1")
    async with (
        pl.Session(plan) as session,
        session.stream([{"a": A + i} for i in range(6)], fetches="left") as results,
    ):
        found = [item.fetched.tolist() async for item in results]
    assert found == [np.maximum(A + i, 0).tolist() for i in range(6)]


async def test_outputs_are_taken_on_their_device_and_other_tensors_on_the_host() -> None:
    double = CupyDouble()
    handed = {"inputs_on": {"a": "cuda:0"}, "outputs_on": "cuda:0"}
    plan = pl.plan(two_paths(), [double.device(), "cpu"], **handed)  # type: ignore[arg-type]
    async with pl.Session(plan) as session:
        given = Library(double).array(A)
        found = await session.run({"a": given}, ["y", "left", "a"])
        np.testing.assert_array_equal(found[0]._cells, Y)
        np.testing.assert_array_equal(found[1], LEFT)
        np.testing.assert_array_equal(found[2], A)
        assert type(found[1]) is type(found[2]) is np.ndarray


# streams and other sessions


@pytest.mark.parametrize("batch", [None, 3])
async def test_a_stream_hands_out_what_is_fetched(batch: int | None) -> None:
    source = [{"a": np.full((1, 2), i, np.float32), "unused": 0} for i in range(7)]
    b = pl.GraphBuilder("rows")
    x = b.input("a", "float32", ("n", 2))
    b.output("y", b.op("Neg", b.op("Add", x, 1.0, name="more")))
    b.output("z", b.op("Relu", b.input("unused", "float32", (2,))))
    async with (
        pl.Session(pl.plan(b.build())) as session,
        session.stream(source, max_in_flight=6, batch=batch, fetches=("more", "y")) as results,
    ):
        index = 0
        async for item in results:
            more, y = item.fetched
            assert more.tolist() == [[index + 1] * 2] == item["more"].tolist()
            assert y.tolist() == [[-index - 1] * 2]
            assert set(item) == {"more", "y"}
            index += 1
        assert index == 7


async def test_all_outputs_are_fetched_where_nothing_is_named() -> None:
    async with (
        pl.Session(pl.plan(two_paths())) as session,
        session.stream([BOTH]) as results,
    ):
        async for item in results:
            assert item.fetched.keys() == {"y", "z"}


def test_a_blocking_session_fetches() -> None:
    with pl.BlockingSession(pl.plan(two_paths())) as session:
        np.testing.assert_array_equal(session.run({"a": A}, ["left"])[0], LEFT)
        with session.stream([{"a": A}] * 3, fetches=["left"]) as results:
            assert [item.fetched[0].tolist() for item in results] == [LEFT.tolist()] * 3
        with pytest.raises(pl.FetchError):
            session.run({"a": A}, "nothing")
        with pytest.raises(pl.FetchError):
            session.stream([], fetches="nothing")


def test_an_asyncio_session_fetches() -> None:
    import asyncio

    async def main() -> None:
        async with pl.AsyncioSession(pl.plan(two_paths())) as session:
            found = await session.run({"a": A}, {"l": "left"})
            np.testing.assert_array_equal(found["l"], LEFT)
            async with session.stream([{"a": A}], fetches="left") as results:
                assert [item.fetched.tolist() async for item in results] == [LEFT.tolist()]

    asyncio.run(main())


# plans are kept


async def test_fetches_that_alternate_are_planned_once_each(planned: list[Graph]) -> None:
    async with pl.Session(pl.plan(two_paths())) as session:
        planned.clear()
        for _ in range(4):
            for fetches in ("y", ["left", "y"], ("y", "left"), {"z": "z"}, ["z", "y"], None):
                await session.run(BOTH, fetches)
        assert [set(graph.outputs) for graph in planned] == [{"y"}, {"left", "y"}, {"z"}]
        status = session.status().plans
        assert (status.misses, status.kept) == (4, 4), "one is that of all outputs"
        assert status.hits == 4 * 6 - 3
        assert session.status().to_dict()["plans"]["misses"] == 4


async def test_nothing_is_inferred_again_for_shapes_that_come_again(planned: list[Graph]) -> None:
    async with pl.Session(pl.plan(two_paths("n"))) as session:
        for length in (1, 2, 1, 2):
            await session.run({"a": np.ones(length, np.float32)}, "left")
        shapes = [graph.tensors["a"].shape for graph in planned]
        assert sorted(shapes[-2:], key=str) == [(1,), (2,)]
        assert len(planned) == 4, "the whole, that for what is fetched, and one for each shape"


async def test_two_items_that_fetch_the_same_have_it_planned_once(planned: list[Graph]) -> None:
    async with pl.Session(pl.plan(two_paths())) as session:
        planned.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(session.run, {"a": A}, "y")
        assert len(planned) == 1


async def test_plans_that_take_turns_stay_open_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A least recently used cache alone would close each of them just before it is used again."""
    monkeypatch.setattr(open_plans, "KEPT_PLANS", 2)
    async with pl.Session(pl.plan(two_paths("n"))) as session:

        async def misses() -> int:
            before = session.status().plans.misses
            for length in range(1, 6):
                await session.run({"a": np.ones(length, np.float32)}, "left")
            return session.status().plans.misses - before

        assert await misses() == 5
        await misses()
        assert [await misses() for _ in range(2)] == [0, 0]


NAMES = ("a", "c", "left", "right", "y", "z")


@settings(max_examples=12)
@given(
    items=st.lists(
        st.tuples(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3), st.integers(1, 4)),
        min_size=2,
        max_size=12,
    )
)
def test_items_of_any_fetches_and_shapes_get_their_own(items: list[tuple[set[str], int]]) -> None:
    """Side by side, in a session that keeps few plans open."""

    async def check(session: pl.Session, value: int, names: set[str], length: int) -> None:
        a, b = (np.arange(length, dtype=np.float32) * sign + value for sign in (1, -1))
        left, right = np.maximum(a, 0), np.tanh(b)
        wanted: dict[str, Array] = {"a": a, "c": np.ones(1), "left": left, "right": right}
        wanted |= {"y": left + 1, "z": left * right}
        found = await session.run({"a": a, "b": b}, {name: name for name in names})
        for name in names:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)

    async def main() -> None:
        async with pl.Session(pl.plan(two_paths("n"))) as session, trio.open_nursery() as nursery:
            for value, (names, length) in enumerate(items):
                nursery.start_soon(check, session, value - 4, names, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_plans, "KEPT_PLANS", 2)
        trio.run(main)


async def test_what_is_no_longer_fetched_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_plans, "KEPT_PLANS", 2)
    monkeypatch.setattr(fetch_plan_cache, "KEPT_FETCHES", 2)
    b = pl.GraphBuilder("many")
    x = b.input("x", "float32", (2,))
    names = [b.op("Add", x, float(i), name=f"t{i}") for i in range(6)]
    b.output("y", b.op("Sum", *names))
    async with pl.Session(pl.plan(b.build())) as session:
        for name in (*names, *names[::-1]):
            np.testing.assert_array_equal(await session.run({"x": A}, name), A + int(str(name)[1:]))
        assert len(session._runtime._fetch_plans._found) == 2  # type: ignore[union-attr]


# state


def counting() -> Graph:
    """Return a graph whose variable w grows by x where "step" or "train" is fetched."""
    b = pl.GraphBuilder("counting")
    held = b.variable("w", np.zeros(2, np.float32))
    total = b.op("Add", held, b.input("x", "float32", (2,)), name="total")
    step = b.assign(held, total, name="step")
    b.output("train", b.group(step))
    b.output("twice", b.op("Mul", total, 2.0))
    return b.build()


async def test_what_is_not_fetched_assigns_nothing() -> None:
    fed = {"x": np.ones(2, np.float32)}
    async with pl.Session(pl.plan(counting())) as session:
        for fetches, value, after in (
            ("total", [1, 1], 0),
            ("step", [1, 1], 1),
            ("twice", [4, 4], 1),
            ("w", [1, 1], 1),
        ):
            assert (await session.run(fed, fetches)).tolist() == value
            assert session.variables["w"].tolist() == [after, after]
        assert await session.run(fed, {"done": "train"}) == {"done": None}
        await session.run(fed)
        assert (await session.run({}, "w")).tolist() == [3, 3]


async def test_a_stream_may_pass_items_that_assign_nothing() -> None:
    source = [{"x": np.ones(2, np.float32)}] * 4
    async with pl.Session(pl.plan(counting())) as session:
        async with session.stream(source, fetches=("train", "total")) as results:
            found = [item.fetched async for item in results]
        assert [(done, total.tolist()) for done, total in found] == [
            (None, [i, i]) for i in range(1, 5)
        ]
        async with session.stream(
            source, fetches="total", max_in_flight=3, ordered=False
        ) as results:
            assert [item.fetched.tolist() async for item in results] == [[5, 5]] * 4
        with pytest.raises(pl.SessionError, match="assign to variables"):
            async with session.stream(source, fetches="step", ordered=False):
                pass
