"""Plans of two steps to be cancelled and interrupted, what they are fed, what must come out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import trio
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from staged import ringed

Feeds = dict[str, Array]


def two_steps(*shape: int | str) -> Graph:
    """Return y = 2 relu(x), in two nodes."""
    builder = pl.GraphBuilder("two steps")
    h = builder.op("Relu", builder.input("x", "float32", shape), name="first")
    builder.output("y", builder.op("Add", h, h, name="second"))
    return builder.build()


def positives() -> Graph:
    """Return the positive numbers of x, doubled: how many, depends on values."""
    builder = pl.GraphBuilder("positives")
    x = builder.input("x", "float32", (4,))
    places = builder.op("NonZero", builder.op("Greater", x, np.float32(0)))
    found = builder.op("Gather", x, builder.op("Squeeze", places, np.array([0])))
    builder.output("y", builder.op("Add", found, found, name="second"))
    return builder.build()


def planned(graph: Graph, second: str = "cpu:1", max_in_flight: int = 1) -> pl.Plan:
    return pl.plan(graph, ["cpu", second], pin={"second": second}, max_in_flight=max_in_flight)


def same(length: int) -> Iterator[Feeds]:
    while True:
        yield {"x": np.arange(-1, length - 1, dtype=np.float32)}


def ever_longer() -> Iterator[Feeds]:
    for length in range(4, 100_000):
        yield {"x": np.arange(-1, length - 1, dtype=np.float32)}


LARGE = 263_000
"""More floats than are copied on the loop."""


Case = tuple[Callable[[], pl.Plan], Callable[[], Iterator[Feeds]]]

CASES: dict[str, Case] = {
    "small arrays": (lambda: planned(two_steps(4)), lambda: same(4)),
    "large arrays": (lambda: planned(two_steps(LARGE)), lambda: same(LARGE)),
    "shapes never seen": (lambda: planned(two_steps("n")), ever_longer),
    "shapes within bounds": (
        lambda: pl.plan(two_steps("n"), ["cpu", "cpu:1"], bounds={"n": 100_000}),
        ever_longer,
    ),
    "shapes that depend on values": (lambda: planned(positives()), lambda: same(4)),
    "rings of one copy": (
        lambda: ringed(planned(two_steps(4), max_in_flight=2), 1),
        lambda: same(4),
    ),
}


def expected(outputs: Any) -> None:
    """Check what came out for -1, 0, 1, ...; some graphs leave out what is not positive."""
    found = outputs["y"][outputs["y"] > 0]
    assert np.array_equal(found, 2 * np.arange(1, 1 + len(found)))
    assert len(found) >= 2


async def run_one(session: pl.Session, feeds: Iterator[Feeds]) -> None:
    expected(await session.run(next(feeds)))


class Watched:
    """A source of a few items, as a generator of either kind; it knows how many are open."""

    def __init__(self, feeds: Iterator[Feeds], items: int, *, asynchronous: bool) -> None:
        self._items = [next(feeds) for _ in range(items)]
        self._asynchronous = asynchronous
        self.open = 0

    def __call__(self) -> Any:
        return self._given_later() if self._asynchronous else self._given()

    def _given(self) -> Iterator[Feeds]:
        self.open += 1
        try:
            yield from self._items
        finally:
            self.open -= 1

    async def _given_later(self) -> AsyncIterator[Feeds]:
        self.open += 1
        try:
            for inputs in self._items:
                await trio.lowlevel.checkpoint()
                yield inputs
        except GeneratorExit:
            await trio.lowlevel.checkpoint()  # who closes it has to wait
            self.open -= 1
            raise
        except trio.Cancelled:
            self.open -= 1
            raise
        self.open -= 1


async def consume(session: pl.Session, source: Watched, **options: Any) -> None:
    async with session.stream(source(), max_in_flight=2, **options) as results:
        async for item in results:
            await trio.lowlevel.checkpoint()
            expected(item.outputs)
