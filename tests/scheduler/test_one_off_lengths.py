"""Lengths that functions alone see: an item of new ones needs no plan of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.opened import one_off, resized_plans

WIDTH = 3
MOST = 40


@pl.operator(
    pl.TensorSpec("float32", ("n", WIDTH)),
    inputs=[pl.TensorSpec("float32", ("n", WIDTH))],
    name="one_off.halves",
)
def halves(x: Any) -> Any:
    return x / 2


@pl.operator(
    pl.TensorSpec("float32", (1, WIDTH)),
    inputs=[pl.TensorSpec("float32", ("n", WIDTH)), pl.TensorSpec("int64", ("m",))],
    name="one_off.sums",
)
def sums(x: Any, y: Any) -> Any:
    return x.sum(axis=0, keepdims=True) + np.float32(y.sum())


@pl.operator(
    pl.TensorSpec("float32", (1, WIDTH)),
    inputs=[pl.TensorSpec("float32", ("n", WIDTH)), pl.TensorSpec("uint8", ("path",))],
    name="one_off.dies",
)
def dies(x: Any, once: Any) -> Any:
    """Add up, unless a file is there: then the process that finds it takes it away and ends."""
    with suppress(OSError):
        Path(bytes(once).decode()).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return x.sum(axis=0, keepdims=True)


def two_lengths(tail: int = 1) -> Graph:
    """Return functions of tensors of two lengths, and an odd number of nodes that see neither."""
    b = pl.GraphBuilder("two lengths")
    x, y = b.input("x", "float32", ("n", WIDTH)), b.input("y", "int64", ("m",))
    half = b.call(halves, x, name="halves")
    b.output("half", half)
    h = b.call(sums, half, y, name="sums")
    for _ in range(tail):
        h = h @ -np.eye(WIDTH, dtype=np.float32)
    b.output("sum", h)
    return b.build()


def feeds(n: int, m: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng([n, m, seed])
    return {"x": rng.integers(-8, 8, (n, WIDTH)).astype(np.float32), "y": rng.integers(0, 9, m)}


def check(item: Any, fed: dict[str, Array]) -> None:
    np.testing.assert_array_equal(item["half"], fed["x"] / 2)
    wanted = -((fed["x"] / 2).sum(axis=0, keepdims=True) + fed["y"].sum())
    np.testing.assert_array_equal(item["sum"], wanted)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the shapes of the plans that are made in the arenas of others from now on."""
    found: list[Any] = []
    make = resized_plans.ResizedPlans.make

    def watched(self: Any, base: Any, shapes: Any, following: int) -> Any:
        found.append({name: tuple(shape) for name, shape in shapes.items()})
        return make(self, base, shapes, following)

    monkeypatch.setattr(resized_plans.ResizedPlans, "make", watched)
    return found


async def stream(session: pl.Session, lengths: Sequence[tuple[int, int]]) -> None:
    fed = [feeds(n, m, seed) for seed, (n, m) in enumerate(lengths)]
    count = 0
    async with session.stream(fed) as results:
        async for item in results:
            check(item, fed[item.index])
            count += 1
    assert count == len(lengths)


CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "lengths": st.lists(st.tuples(st.integers(0, MOST), st.integers(0, MOST)), min_size=6),
    "in_flight": st.integers(1, 3),
    "bounded": st.booleans(),
    "most": st.integers(0, 2),
}


@pytest.mark.parametrize("devices", ["cpu", ["cpu:0..1"]], ids=str)
@settings(max_examples=12, deadline=None)
@given(choices=st.fixed_dictionaries(CHOICES))
def test_items_of_any_lengths_have_the_right_results(devices: Any, choices: dict[str, Any]) -> None:
    run_items(devices, **choices)


@settings(max_examples=4, deadline=None)  # each example starts a process
@given(choices=st.fixed_dictionaries(CHOICES))
def test_items_of_any_lengths_are_right_on_workers(choices: dict[str, Any]) -> None:
    run_items(["worker:0", "cpu"], **choices)


def run_items(
    devices: Any, lengths: list[tuple[int, int]], in_flight: int, bounded: bool, most: int
) -> None:
    bounds: Any = {"n": (0, MOST), "m": (0, MOST)} if bounded else None
    pins = {"halves": "worker:0", "sums": "worker:0"} if "worker:0" in devices else {}
    plan = pl.plan(two_lengths(9), devices, pin=pins, bounds=bounds, max_in_flight=in_flight)

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan) as session:
                await stream(session, lengths * 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_off, "MOST_ITEMS", most)
        trio.run(main)


@pytest.mark.parametrize("device", ["cpu", "worker:0"])
async def test_only_lengths_that_come_again_and_again_get_a_plan_of_their_own(
    device: str, made: list[Any]
) -> None:
    pins = {"halves": device, "sums": device}
    plan = pl.plan(
        two_lengths(),
        list(dict.fromkeys([device, "cpu"])),
        pin=pins,
        bounds={"n": MOST, "m": MOST},
        max_in_flight=2,
    )
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            await stream(session, [(7, 7)])
            made.clear()
            await stream(session, [(n, MOST - n) for n in range(1, MOST)])
            for count in range(one_off.MOST_ITEMS + 2):
                assert len(made) == (count > one_off.MOST_ITEMS)
                fed = feeds(5, 5, count)
                check(await session.run(fed), fed)
            assert made == [{"x": (5, WIDTH), "y": (5,)}]


async def test_without_bounds_only_the_longest_so_far_get_a_plan(made: list[Any]) -> None:
    plan = pl.plan(two_lengths(9), "cpu", max_in_flight=2)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            await stream(session, [(7, 7)])
            # What is not longer in one of both fits in; what is, is the next that others fit in.
            for n, m in [(9, 6), (8, 9), (8, 6), (20, 20), (19, 1), (1, 20), (20, 3)]:
                fed = feeds(n, m)
                check(await session.run(fed), fed)
    assert [shapes["x"][0] for shapes in made] == [7, 9, 8, 20]


@pytest.mark.parametrize("sees", ["tensor", "length"])
async def test_what_other_nodes_see_gets_a_plan_for_each_length(sees: str, made: list[Any]) -> None:
    b = pl.GraphBuilder("seen")
    x = b.input("x", "float32", ("n", WIDTH))
    half = b.call(halves, x, name="halves")
    if sees == "tensor":
        b.output("y", b.op("Neg", half))
    else:
        b.output("y", b.call(sums, half, b.op("Shape", x), name="sums"))
    plan = pl.plan(b.build(), "cpu", bounds={"n": MOST})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            for n in (3, 5, 4):
                fed = feeds(n, 0)["x"]
                sum_ = (fed / 2).sum(axis=0, keepdims=True) + n + WIDTH
                wanted = -fed / 2 if sees == "tensor" else sum_
                np.testing.assert_array_equal((await session.run({"x": fed}))["y"], wanted)
    assert len(made) == 3


async def test_an_item_that_its_worker_dies_of_starts_again_with_its_own_lengths(
    tmp_path: Path, made: list[Any]
) -> None:
    b = pl.GraphBuilder("dies")
    x, once = b.input("x", "float32", ("n", WIDTH)), b.input("once", "uint8", ("path",))
    b.output("y", b.call(dies, x, once, name="dies"))
    plan = pl.plan(
        b.build(), ["worker:0", "cpu"], pin={"dies": "worker:0"}, bounds={"n": MOST, "path": 256}
    )
    file = tmp_path / "once"
    policy = pl.FaultPolicy(restart_s=0, standby=False)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=policy) as session:
            for n in range(2, 9):
                if n in (5, 7):
                    file.touch()
                fed = feeds(n, 0)["x"]
                kept = fed.copy()
                result = await session.run(
                    {"x": fed, "once": np.frombuffer(str(file).encode(), np.uint8)}
                )
                np.testing.assert_array_equal(result["y"], kept.sum(axis=0, keepdims=True))
                assert not file.exists()
    # The first, and what each of the two deaths left to start again.
    assert [shapes["x"][0] for shapes in made] == [2, 5, 7]


async def test_lengths_out_of_bounds_are_refused_as_ever() -> None:
    plan = pl.plan(two_lengths(), "cpu", bounds={"n": 8, "m": 8})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            await stream(session, [(7, 7), (6, 6)])
            with pytest.raises(pl.FeedError, match="9"):
                await session.run(feeds(9, 3))
            with pytest.raises(pl.FeedError, match="0"):
                await session.run(feeds(0, 3))
            await stream(session, [(5, 5)])
