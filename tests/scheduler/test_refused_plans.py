"""Plans that do not fit, in a session: the items concerned fail, and planning is not repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from plait.graph.core.ir import Graph
from plait.scheduler.runtime.opened import open_plans


def relu(length: int | str) -> Graph:
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (length,))))
    return builder.build()


def ones(n: int) -> dict[str, Any]:
    return {"x": np.ones(n, np.float32)}


def roomy(n_floats: int) -> PrivateDevice:
    """Return a device with room for one item of so many floats, in and out."""
    return PrivateDevice("npu", nbytes=2 * 4 * n_floats)


async def test_a_stream_of_more_items_than_fit_lets_them_follow_each_other() -> None:
    source = [{"x": np.full(1024, n, np.float32)} for n in range(9)]
    async with pl.Session(pl.plan(relu(1024), roomy(1024))) as session:
        async with session.stream(source, max_in_flight=8) as results:
            found = [item["y"][0] async for item in results]
    assert found == list(range(9))


async def test_items_that_are_too_large_fail_alone_and_are_planned_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[object] = []
    for_shapes = pl.Plan.for_shapes

    def watched(self: pl.Plan, shapes: Any, *arguments: Any) -> pl.Plan:
        planned.append(shapes["x"])
        return for_shapes(self, shapes, *arguments)

    monkeypatch.setattr(pl.Plan, "for_shapes", watched)
    source = [ones(n) for n in (16, 4096, 16, 4096, 4096)]
    async with pl.Session(pl.plan(relu("n"), roomy(1024))) as session:
        async with session.stream(source) as results:
            errors = [item.error async for item in results]
    assert [type(error) for error in errors] == [
        type(None), pl.DoesNotFitError, type(None), pl.DoesNotFitError, pl.DoesNotFitError
    ]  # fmt: skip
    assert str(errors[1]).replace("item 1", "item 4") == str(errors[4])
    assert errors[1] is not errors[4]
    assert planned == [(16,), (4096,)]


async def test_only_the_latest_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_plans, "KEPT_REFUSALS", 2)
    async with pl.Session(pl.plan(relu("n"), roomy(1024))) as session:
        for n in (4096, 4097, 4098):
            with pytest.raises(pl.DoesNotFitError):
                await session.run(ones(n))
        assert session._runtime is not None
        assert len(session._runtime._open_plans._refusals) == 2
