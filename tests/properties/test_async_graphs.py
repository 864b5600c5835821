"""Random graphs of kernels, functions and async functions give what numpy gives, node by node."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

Array = np.ndarray[Any, Any]
SIZE = 6
LIMITS = {"free": None, "few": 2, "one": 1}

under_way = dict.fromkeys(LIMITS, 0)
most = dict.fromkeys(LIMITS, 0)
pauses = count()


def combined(x: Array, y: Array) -> Array:
    return x * 3 - y + np.roll(x, 1)


ordinary = pl.operator(name="test_async_graphs.ordinary")(combined)


def asynchronous(label: str) -> Callable[..., Any]:
    """Return an operator that takes turns with others while it computes, or sleeps."""

    async def function(x: Array, y: Array) -> Array:
        under_way[label] += 1
        most[label] = max(most[label], under_way[label])
        try:
            await trio.sleep(next(pauses) * 7 % 5)
            return combined(x, y)
        finally:
            under_way[label] -= 1

    function.__qualname__ = function.__name__ = label
    return pl.operator(name=f"test_async_graphs.{label}", concurrency=LIMITS[label])(function)


FUNCTIONS = {"ordinary": ordinary, **{label: asynchronous(label) for label in LIMITS}}
ORACLE: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Neg": np.negative,
    **dict.fromkeys(FUNCTIONS, combined),
}


class Drawn(NamedTuple):
    """A graph, and what it does: for each node its kind, and which values it reads."""

    graph: pl.Graph
    nodes: list[tuple[str, list[int]]]
    fetched: list[int]

    def expected(self, x: Array) -> list[Array]:
        values = [x]
        for kind, reads in self.nodes:
            values.append(ORACLE[kind](*(values[index] for index in reads)))
        return [values[index] for index in self.fetched]


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    builder = pl.GraphBuilder("random")
    made = [builder.input("x", "int32", (SIZE,))]
    nodes: list[tuple[str, list[int]]] = []
    for number in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(sorted(ORACLE)))
        arity = 1 if kind == "Neg" else 2
        reads = [draw(st.integers(0, len(made) - 1)) for _ in range(arity)]
        names = [made[index] for index in reads]
        if kind in FUNCTIONS:
            made.append(builder.call(FUNCTIONS[kind], *names, name=f"n{number}"))
        else:
            made.append(builder.op(kind, *names, name=f"n{number}"))
        nodes.append((kind, reads))
    places = st.integers(1, len(made) - 1)
    fetched = draw(st.lists(places, min_size=1, max_size=3, unique=True))
    for index, place in enumerate(fetched):
        builder.output(f"y{index}", made[place])
    return Drawn(builder.build(), nodes, fetched)


@given(
    drawn=graphs(),
    devices=st.sampled_from([("cpu",), ("cpu", "ort"), ("formal", "cpu")]),
    max_in_flight=st.integers(1, 6),
    ordered=st.booleans(),
    copy=st.booleans(),
)
def test_any_mix_of_functions_gives_the_same_bits(
    drawn: Drawn, devices: tuple[str, ...], max_in_flight: int, ordered: bool, copy: bool
) -> None:
    plan = pl.plan(drawn.graph, devices, max_in_flight=max_in_flight)
    items = [np.arange(SIZE, dtype=np.int32) * seed + seed for seed in range(9)]
    most.update(dict.fromkeys(LIMITS, 0))

    async def stream() -> None:
        seen = []
        async with pl.Session(plan) as session:
            source = ({"x": x} for x in items)
            async with session.stream(source, ordered=ordered, copy=copy) as results:
                async for item in results:
                    assert item.error is None
                    seen.append(item.index)
                    for index, want in enumerate(drawn.expected(items[item.index])):
                        assert np.array_equal(item[f"y{index}"], want)
            assert session.status().in_flight == 0
        assert sorted(seen) == [*range(len(items))]
        assert seen == sorted(seen) or not ordered

    trio.run(stream, clock=MockClock(autojump_threshold=0))
    assert not any(under_way.values())
    assert all(most[label] <= (limit or len(items) * 10) for label, limit in LIMITS.items())


@given(drawn=graphs(), seconds=st.floats(0, 12), max_in_flight=st.integers(1, 4))
def test_cancelled_at_any_moment_nothing_is_left_under_way(
    drawn: Drawn, seconds: float, max_in_flight: int
) -> None:
    plan = pl.plan(drawn.graph, max_in_flight=max_in_flight)
    x = np.arange(SIZE, dtype=np.int32)

    async def cut_short() -> None:
        async with pl.Session(plan) as session:
            with trio.move_on_after(seconds):
                async with session.stream({"x": x} for _ in range(9)) as results:
                    async for item in results:
                        assert item.error is None
            assert not any(under_way.values())
            got = await session.run({"x": x})
            for index, want in enumerate(drawn.expected(x)):
                assert np.array_equal(got[f"y{index}"], want)

    trio.run(cut_short, clock=MockClock(autojump_threshold=0))
    assert not any(under_way.values())
