"""Once a stream runs, nothing is allocated for tensors, and nothing is kept of items."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch.way_choice import WayChoice
from plait.scheduler.runtime.items.input_staging import InputStagingPool
from plait.scheduler.runtime.opened import ample_bounds
from resources import held, left_since
from trio.testing import MockClock

TENSOR = 1 << 20
"""Bytes; far more than the objects of the items in flight."""


def planned(*shape: int | str, second: str = "cpu:1", max_in_flight: int = 3) -> pl.Plan:
    """Return a plan of y = relu(x) + exp(relu(x)), the end of it on a second device."""
    b = pl.GraphBuilder("steady")
    h = b.op("Relu", b.input("x", "float32", shape), name="first")
    b.output("y", b.op("Add", h, b.op("Exp", h, name="exp"), name="second"))
    pins = {"exp": second, "second": second}
    return pl.plan(b.build(), ["cpu", second], pin=pins, max_in_flight=max_in_flight)


def zeros(length: int, count: int) -> Iterator[Mapping[str, Array]]:
    x = np.zeros(length, np.float32)
    return ({"x": x} for _ in range(count))


async def consume(session: pl.Session, source: Any, **options: Any) -> int:
    count = 0
    async with session.stream(source, **options) as results:
        async for item in results:
            assert item["y"][0] == 1
            count += 1
    return count


@pytest.mark.parametrize(("copy", "most"), [(False, 0.5), (True, 3.5)])
async def test_no_tensor_is_allocated_but_the_results_that_are_handed_out(
    copy: bool, most: float
) -> None:
    """Python's record of memory knows every array, of all threads, and how high it has been.

    With copies those of two items in flight and of the last result are alive.
    """
    length = TENSOR // 4
    warm_up, items = zeros(length, 8), zeros(length, 40)
    async with pl.Session(planned(length, max_in_flight=2)) as session:
        await consume(session, warm_up, copy=copy)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await consume(session, items, copy=copy)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak - before < most * TENSOR


async def test_items_that_wait_for_memory_share_few_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    like = InputStagingPool._like

    def watched(self: InputStagingPool, name: str, array: Array) -> Array:
        found = like(self, name, array)
        made.append(found)
        return found

    monkeypatch.setattr(InputStagingPool, "_like", watched)
    monkeypatch.setattr(WayChoice, "advance", lambda choice, *_: choice.refuse())  # all on lanes
    length = 100_000
    plan = pl.plan(planned(length).graph, ["cpu"])
    assert plan.memory is not None
    room = {name: pool.nbytes for name, pool in plan.memory.pools.items()}
    async with pl.Session(pl.plan(plan.graph, ["cpu"], memory_limits=room)) as session:
        for _ in range(2):
            await consume(session, zeros(length, 50), max_in_flight=8)
    assert len(made) > 16, "they waited: there is room for one"
    assert len({id(array) for array in made}) <= 8


def objects() -> Counter[str]:
    """Count this library's and trio's objects."""
    gc.collect()
    names = (repr(type(each)) for each in gc.get_objects())
    return Counter(name for name in names if any(whose in name for whose in ("plait", "trio")))


async def random_lengths(count: int, lengths: int) -> AsyncIterator[Mapping[str, Array]]:
    random = np.random.default_rng(0)
    for _ in range(count):
        yield {"x": np.zeros(random.integers(1, 1 + lengths), np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [1, 8], ids=["one shape", "as many as are kept"])
async def test_nothing_is_kept_of_items(lengths: int) -> None:
    # With one slot: more of them are made whenever items of a length first overlap.
    async with pl.Session(planned("n", max_in_flight=1), trace=False) as session:
        await consume(session, random_lengths(100, lengths))
        before, things = objects(), held()
        assert await consume(session, random_lengths(300, lengths)) == 300
        assert not objects() - before
        assert not left_since(things)


async def test_plans_for_shapes_that_are_not_kept_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every item needs a plan, and one is closed for it: with workers, arenas are shared files."""
    monkeypatch.setattr(ample_bounds, "FEW_SHAPES", 1000)
    async with pl.Session(planned("n", second="worker:0"), trace=False) as session:
        await consume(session, ({"x": np.zeros(n, np.float32)} for n in range(1, 31)))
        things = held()
        await consume(session, ({"x": np.zeros(n, np.float32)} for n in range(31, 61)))
        assert not left_since(things)


@pytest.mark.slow
@pytest.mark.parametrize(("source_s", "consumer_s"), [(1.0, 0.0), (0.0, 1.0)])
def test_a_minute_with_a_slow_end_keeps_no_more_than_is_in_flight(
    source_s: float, consumer_s: float
) -> None:
    alive = peak = 0

    async def source() -> AsyncIterator[Mapping[str, Array]]:
        nonlocal alive, peak
        for inputs in zeros(4, 60):
            await trio.sleep(source_s)
            alive += 1
            peak = max(peak, alive)
            yield inputs

    async def main() -> None:
        nonlocal alive
        async with pl.Session(planned(4), trace=False) as session:
            await consume(session, zeros(4, 20))
            before = objects()
            async with session.stream(source(), max_in_flight=3) as results:
                async for _ in results:
                    await trio.sleep(consumer_s)
                    alive -= 1
            del results, _
            assert not objects() - before

    trio.run(main, clock=MockClock(autojump_threshold=0.005))
    assert alive == 0
    assert 1 <= peak <= 3
