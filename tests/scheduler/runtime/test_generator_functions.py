"""Generator functions as nodes: each value is a row of what follows, up to a bound."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from trio.testing import wait_all_tasks_blocked

Array = np.ndarray[Any, Any]
NUMBERS = pl.TensorSpec("int64", ("count",))
ROWS = (pl.TensorSpec("int64", ("crops", "width")), pl.TensorSpec("float32", ("crops",)))
MOST = 6

closed: list[str] = []
gate = threading.Event()
begun = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    closed.clear()
    gate.clear()
    begun.clear()


def rows_of(counts: Array, width: int = 3) -> list[tuple[Array, np.float32]]:
    """Return what generators yield of a vector: a row for each number that is not negative."""
    return [(np.full(width, n), np.float32(n / 2)) for n in counts if n >= 0]


@pl.operator(ROWS, inputs=[NUMBERS], name="test_generators.cut")
def cut(numbers: Array, *, width: int = 3) -> Iterator[tuple[Array, np.float32]]:
    buffer = np.empty(width, np.int64)  # yielded again and again
    try:
        for row, half in rows_of(numbers, width):
            buffer[:] = row
            yield buffer, half
    finally:
        closed.append("cut")


@pl.operator(ROWS, inputs=[NUMBERS], name="test_generators.cut_async")
async def cut_async(numbers: Array, *, width: int = 3) -> AsyncIterator[tuple[Array, np.float32]]:
    try:
        for row in rows_of(numbers, width):
            await trio.lowlevel.checkpoint()
            yield row
    finally:
        closed.append("cut_async")


@pl.operator(pl.TensorSpec("int64", (3, 2)), inputs=[NUMBERS], name="test_generators.triple")
def triple(numbers: Array) -> Iterator[list[int]]:
    for number in numbers:
        yield [number, -number]  # a list is a row as well


@pl.operator(pl.TensorSpec("int64", ("n",)), inputs=[NUMBERS], name="test_generators.endless")
def endless(numbers: Array) -> Iterator[Array]:
    try:
        while True:
            yield numbers[0]
    finally:
        closed.append("endless")


@pl.operator(pl.TensorSpec("int64", ("n",)), inputs=[NUMBERS], name="test_generators.slow")
def slow(numbers: Array) -> Iterator[Array]:
    try:
        yield numbers[0]
        begun.set()
        gate.wait(30)
        yield numbers[0]
        closed.append("went on")
        yield numbers[0]
    finally:
        closed.append("slow")


@pl.operator(pl.TensorSpec("int64", ("n",)), inputs=[NUMBERS], name="test_generators.wrong")
def wrong(numbers: Array) -> Iterator[Any]:
    yield numbers[0]
    yield (numbers[0], numbers[0]) if numbers[0] else numbers[0].astype("float64")


@pl.operator(pl.TensorSpec("int64", ()), inputs=[NUMBERS], name="test_generators.flat")
def flat(numbers: Array) -> Iterator[Array]:
    yield numbers[0]


def planned(
    function: Callable[..., Any],
    devices: Any = "cpu",
    *,
    length: Any = None,
    max_in_flight: int = 3,
    **attributes: Any,
) -> pl.Plan:
    b = pl.GraphBuilder("rows")
    made = b.call(function, b.input("numbers", "int64", (length or "count",)), **attributes)
    many = made if isinstance(made, tuple) else (made,)
    for index, tensor in enumerate(many):
        b.output(f"y{index}", tensor)
        b.output(f"z{index}", b.op("Neg", tensor))
    bounds = {"count": 8, "crops": MOST, "n": 2, "width": 3}
    used = {dim for one in many for dim in b.spec(one).shape or () if isinstance(dim, str)}
    used |= set() if length else {"count"}
    known = {name: most for name, most in bounds.items() if name in used}
    return pl.plan(b.build(), devices, bounds=known, max_in_flight=max_in_flight)


PLANS = {
    function.__name__: planned(function, max_in_flight=in_flight)
    for function, in_flight in ((cut, 2), (cut_async, 4))
}


@given(
    items=st.lists(st.lists(st.integers(-3, 9), min_size=1, max_size=8), min_size=1, max_size=6),
    function=st.sampled_from(sorted(PLANS)),
    ordered=st.booleans(),
)
def test_what_is_yielded_is_collected_in_order_whatever_its_count(
    items: list[list[int]], function: str, ordered: bool
) -> None:
    closed.clear()
    arrays = [np.array(numbers, np.int64) for numbers in items]

    async def stream() -> None:
        source = ({"numbers": array} for array in arrays)
        async with (
            pl.Session(PLANS[function]) as session,
            session.stream(source, ordered=ordered) as results,
        ):
            async for item in results:
                wanted = rows_of(arrays[item.index])
                if len(wanted) > MOST:
                    assert f"more than {MOST} values" in str(item.error)
                    continue
                assert item.error is None
                halves = np.array([half for _, half in wanted], np.float32)
                assert item["y0"].tolist() == [row.tolist() for row, _ in wanted]
                assert np.array_equal(item["y1"], halves)
                assert np.array_equal(item["z0"], -item["y0"])
                assert np.array_equal(item["z1"], -halves)

    trio.run(stream)
    assert closed == [function] * len(items)


@pytest.mark.parametrize("device", ["formal", "worker:0"])
def test_as_many_rows_as_are_declared_need_no_bound(device: str) -> None:
    plan = planned(triple, device, length=3)
    outputs = pl.run(plan, {"numbers": np.array([4, 0, 7])})
    assert outputs["y0"].tolist() == [[4, -4], [0, 0], [7, -7]]
    assert (outputs["z0"] == -outputs["y0"]).all()


def test_rows_that_are_too_many_too_few_or_other_than_declared_are_told() -> None:
    cases: list[tuple[Callable[..., Any], list[int], str]] = [
        (endless, [1], "more than 2 values, the bound of 'n'(.|\n)*'n': 4"),
        (wrong, [0], r"output 0 of value 1 is float64\[\], a row of it is int64\[\]"),
        (wrong, [1], "value 1 has 2 parts, 1 arrays"),
        (cut, [1] * 7, "more than 6 values, the bound of 'crops'"),
        (triple, [1], r"int64\[1, 2\], declared was int64\[3, 2\]"),
        (triple, [1] * 4, "more than 3 values, so many were declared"),
    ]
    for function, numbers, message in cases:
        with pytest.raises(KernelError, match=message):
            pl.run(planned(function), {"numbers": np.array(numbers)})
    assert closed == ["endless", "cut"]


def test_rows_may_be_narrower_than_their_bound_but_not_wider() -> None:
    numbers = {"numbers": np.array([1])}
    assert pl.run(planned(cut, width=2), numbers)["y0"].tolist() == [[1, 1]]
    with pytest.raises(KernelError, match=r"int64\[4\], a row of it is int64\[3\]"):
        pl.run(planned(cut, width=4), numbers)


async def test_a_generator_whose_item_is_cancelled_ends_between_two_values() -> None:
    async with pl.Session(planned(slow)) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.run, {"numbers": np.array([1])})
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()  # now the step has been told
        gate.set()
    assert closed == ["slow"]


def test_results_without_an_axis_for_rows_and_classes_are_refused() -> None:
    b = pl.GraphBuilder("flat")
    with pytest.raises(pl.ShapeError, match="has no axis for what it yields"):
        b.call(flat, b.input("numbers", "int64", ("count",)))
    with pytest.raises(pl.PlaitError, match="is a generator"):

        @pl.operator(NUMBERS, name="test_generators.of_class")
        class OfClass:
            def run(self, numbers: Array) -> Iterator[Array]:
                yield numbers
