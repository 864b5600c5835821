from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.devices.lane import ThreadLane
from plait.graph.core.ir import Graph

X = np.array([-1, 2], np.float32)


def graph() -> Graph:
    builder = pl.GraphBuilder("run")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n",)), name="n"))
    return builder.build()


def test_run_is_one_line() -> None:
    assert pl.run(graph(), {"x": X})["y"].tolist() == [0, 2]


def test_run_takes_a_plan_too() -> None:
    assert pl.run(pl.plan(graph()), {"x": X})["y"].tolist() == [0, 2]


def test_run_takes_devices_and_pins() -> None:
    assert pl.run(graph(), {"x": X}, ["cpu"], pin={"n": "cpu"})["y"].tolist() == [0, 2]


def test_run_takes_the_bounds_that_its_errors_ask_for(forget_operators: None) -> None:
    @pl.operator(pl.TensorSpec("float32", ("found",)), name="test_run.positive")
    def positive(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x[x > 0]

    builder = pl.GraphBuilder("counted")
    builder.output("y", builder.call(positive, builder.input("x", "float32", (2,))))
    counted = builder.build()
    with pytest.raises(pl.PlanError) as raised:
        pl.run(counted, {"x": X})
    assert "bounds={'found': 64}" in (raised.value.fix or "")
    assert pl.run(counted, {"x": X}, bounds={"found": 64})["y"].tolist() == [2]
    with pytest.raises(pl.KernelError, match="its bound is 0"):
        pl.run(counted, {"x": X}, bounds={"found": 0})


def test_run_works_where_an_asyncio_loop_runs_as_in_a_notebook() -> None:
    async def cell() -> list[float]:
        return pl.run(graph(), {"x": X})["y"].tolist()  # type: ignore[no-any-return]

    assert asyncio.run(cell()) == [0, 2]


def test_errors_come_out_of_a_notebook_as_they_are() -> None:
    async def cell() -> None:
        pl.run(graph(), {})

    with pytest.raises(pl.FeedError, match="no value for input 'x'"):
        asyncio.run(cell())


async def test_run_refuses_to_block_a_trio_task() -> None:
    with pytest.raises(pl.SessionError, match="would block the trio task"):
        pl.run(graph(), {"x": X})


def test_run_raises_the_users_mistakes_bare() -> None:
    with pytest.raises(pl.FeedError, match="has no input 'z'"):
        pl.run(graph(), {"x": X, "z": X})


@pytest.mark.parametrize(
    "given", [{"devices": ["worker:0"]}, {"pin": {"n": "cpu"}}, {"bounds": {"n": 4}}]
)
def test_a_plan_is_run_as_it_was_planned(given: dict[str, Any]) -> None:
    with pytest.raises(pl.PlanError, match="has its devices, pins and bounds already"):
        pl.run(pl.plan(graph()), {"x": X}, **given)


def test_a_small_graph_is_run_without_waiting_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pl.plan(graph(), shapes={"x": (2,)})

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it has a thread do something")

    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
    monkeypatch.setattr(ThreadLane, "put", refuse)
    assert pl.run(plan, {"x": X})["y"].tolist() == [0, 2]


def test_a_python_function_is_run_where_ctrl_c_does_not_wait_for_it(
    forget_operators: None,
) -> None:
    ran_on: list[str] = []

    @pl.operator(name="test_run.named")
    def named(x: np.ndarray) -> np.ndarray:
        ran_on.append(threading.current_thread().name)
        return x

    builder = pl.GraphBuilder("named")
    builder.output("y", builder.call(named, builder.input("x", "float32", (2,))))
    pl.run(builder.build(), {"x": X})
    assert ran_on == ["plait-cpu"]
