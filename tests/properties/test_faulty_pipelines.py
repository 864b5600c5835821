"""Joined, live and plain streams of rows in batches whose worker dies, beside what numpy says."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import pytest
import trio
from faulty_functions import BAD, worked
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.worker.device import WorkerDevice

Array = np.ndarray[Any, Any]
ITEM = pl.TensorSpec("float32", ("numbers",))
VALUES = pl.TensorSpec("float32", ("values", 2))
MOST = 8
REFUSED = 11.0


@pl.operator(VALUES, inputs=[ITEM], name="test_faulty_pipelines.yielded")
def yielded(numbers: Array) -> Iterator[Array]:
    yield from (np.array([number, -number], np.float32) for number in numbers)


@pl.operator(VALUES, inputs=[ITEM], name="test_faulty_pipelines.awaited")
async def awaited(numbers: Array) -> AsyncIterator[Array]:
    for number in numbers:
        await trio.lowlevel.checkpoint()
        yield np.array([number, -number], np.float32)


@pl.operator(VALUES, inputs=[VALUES], name="test_faulty_pipelines.asked", concurrency=2)
async def asked(rows: Array) -> Array:
    await trio.lowlevel.checkpoint()
    if (rows[:, 0] == 2 * REFUSED).any():
        raise OSError("refused")
    return rows + np.float32(1)


class Case(NamedTuple):
    """A pipeline, what it is fed, and after which items its worker is killed.

    A batch of 0 stands for the rows of an item as part of it. With lags items come from two sources
    that are joined by time: the second one has a value for each, but for those with a lag of 1.
    """

    source: str
    batch: int
    keeps_errors: bool
    items: list[list[float]]
    lags: list[bool] | None
    is_live: bool
    strikes: frozenset[int]
    taken: int

    @property
    def matched(self) -> list[int]:
        """Return which items there are, with the join's partners."""
        lags = self.lags
        return [n for n in range(len(self.items)) if lags is None or not lags[n % len(lags)]]

    def expected(self, number: int) -> dict[str, list[Any]] | None:
        numbers = np.array(self.items[number], np.float32)
        ok = numbers != BAD
        keeps = self.keeps_errors and self.batch
        if (not keeps and not ok.all()) or (numbers == REFUSED).any():
            return None
        first = np.where(ok, numbers * 2, 0) + 1 + number
        second = np.where(ok, -numbers * 2, 0) + 1 + number
        found: dict[str, list[Any]] = {"rows": np.stack([first, second], 1).tolist()}
        return {**found, "ok": ok.tolist()} if keeps else found


def planned(case: Case, worker: WorkerDevice) -> pl.Plan:
    body = pl.GraphBuilder("body")
    body.output("y", body.call(worked, body.input("x", "float32", ("rows", 2)), name="work"))
    b = pl.GraphBuilder("pipeline")
    function = {"yielded": yielded, "awaited": awaited}[case.source]
    made = b.call(function, b.input("numbers", "float32", ("numbers",)), name="make")
    if not case.batch:
        made = b.each(made, body.build(), name="each")
    elif case.keeps_errors:
        made, ok = b.each(made, body.build(), name="each", batch=case.batch, on_error="value")
        b.output("ok", ok)
    else:
        made = b.each(made, body.build(), name="each", batch=case.batch)
    offset = b.input("offset", "float32", (1,))
    b.output("rows", b.op("Add", b.call(asked, made, name="ask"), offset))
    pins = {"make": "cpu", "each/work": "worker:0", "*": "cpu"}
    bounds = {"numbers": MOST, "values": MOST}
    return pl.plan(b.build(), [worker, "cpu"], pin=pins, bounds=bounds, max_in_flight=3)


def feeds(case: Case, worker: WorkerDevice) -> Any:
    """Return the source: items, or a join of what they are made of."""

    def numbers() -> Iterator[pl.Stamped]:
        for index, numbers in enumerate(case.items):
            if index in case.strikes and worker.pid is not None:
                with suppress(ProcessLookupError):  # it may not be back yet
                    os.kill(worker.pid, signal.SIGKILL)
            yield pl.Stamped(index, np.array(numbers, np.float32))

    def offset(index: int) -> Array:
        return np.array([index], np.float32)

    if case.lags is None:
        return (
            pl.Stamped(stamp, {"numbers": value, "offset": offset(int(stamp))})
            for stamp, value in numbers()
        )
    offsets = (pl.Stamped(index, offset(index)) for index in case.matched)
    return pl.join({"numbers": numbers(), "offset": offsets}, by="key")


def check(case: Case, item: pl.Item) -> None:
    assert item.stamp is not None
    wanted = case.expected(int(item.stamp))
    if wanted is None:
        assert isinstance(item.error, pl.KernelError)
    else:
        assert {name: item[name].tolist() for name in item} == wanted


numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0, 3.5, BAD, REFUSED])
cases = st.builds(
    Case,
    st.sampled_from(["yielded", "awaited"]),
    st.sampled_from([0, 1, 3]),
    st.booleans(),
    st.lists(st.lists(numbers, min_size=1, max_size=MOST), min_size=1, max_size=12),
    st.none() | st.lists(st.booleans(), min_size=1, max_size=5),
    st.booleans(),
    st.frozensets(st.integers(0, 11), max_size=2),
    st.integers(1, 20),
)


@pytest.mark.extended
@settings(max_examples=20)
@given(cases)
def test_pipelines_whose_worker_dies_lose_double_and_displace_nothing(case: Case) -> None:
    worker = WorkerDevice("worker:0")

    async def stream() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(planned(case, worker)) as session:
                arguments: Any = {"keep": 1000} if case.is_live else {}
                seen: list[float | None] = []
                async with session.stream(feeds(case, worker), **arguments) as results:
                    async for item in results:
                        check(case, item)
                        seen.append(item.stamp)
                        if len(seen) == case.taken:
                            break
                assert seen == case.matched[: case.taken]
                assert session.status().in_flight == 0
                again = await session.run(
                    {"numbers": np.ones(1, "float32"), "offset": np.ones(1, "float32")}
                )
                assert again["rows"].tolist() == [[4, 0]]

    trio.run(stream)
