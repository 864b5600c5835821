"""Plans whose opening never ends on a worker: whoever gives them up does not wait without bound."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from gates import Gate
from patience import WAIT_S
from plait.devices.device import Device
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph

from . import fault_functions as functions
from .fault_graphs import N, answer, feeds

COUNTER = itertools.count()
PROMPT = pl.FaultPolicy(grace_s=0.01, restart_s=0)

MODULE = """
import os
import plait as pl
from plait.devices.worker import process

if process.serving and not os.path.exists({path!r} + ".reached"):
    open({path!r} + ".reached", "w").close()
    with open({path!r}, "rb") as pipe:
        pipe.read()

@pl.operator()
def double(x):
    return x + x
"""


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


@pytest.fixture(params=["imports", "opens", "computes"])
def graph(
    request: pytest.FixtureRequest,
    gate: Gate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forget_operators: None,
) -> Graph:
    """Return y = relu(2x): the worker waits at the gate before the first item can start."""
    builder = pl.GraphBuilder("endless")
    x = builder.input("x", "float32", ("n",))
    match request.param:
        case "imports":
            module = f"imported_number_{next(COUNTER)}"  # an id() may come back, still imported
            text = MODULE.format(path=gate.path)
            (tmp_path / f"{module}.py").write_text(text)
            monkeypatch.syspath_prepend(tmp_path)
            y = builder.call(importlib.import_module(module).double, x, name="call")
        case "opens":
            y = builder.call(functions.OpenedLate, x, name="call", path=gate.path)
        case _:
            one = np.ones(1, np.float32)
            two = builder.op("test.DoubleLate", one, name="call", path=gate.path)
            y = builder.op("Mul", x, two)
    builder.output("y", builder.op("Relu", y))
    return builder.build()


def planned(graph: Graph, **options: Any) -> pl.Plan:
    devices: list[str | Device] = [WorkerDevice("worker:0"), "cpu"]
    passes = ["-fold_constants"]  # it is computed when the plan is opened
    limits = {"cpu": 1 << 20}  # and on the worker, not by numpy when the session opens
    pins = {"call": "worker:0"}
    return pl.plan(graph, devices, pin=pins, passes=passes, memory_limits=limits, **options)


async def test_leaving_a_session_while_an_item_waits_for_it(graph: Graph, gate: Gate) -> None:
    async def run(session: pl.Session) -> None:
        with pytest.raises(pl.SessionError, match="closed before the item was done"):
            await session.run(feeds(1))

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            async with pl.Session(planned(graph), faults=PROMPT) as session:
                nursery.start_soon(run, session)
                await gate.reached()


@pytest.mark.slow
async def test_an_item_that_waits_for_it_can_be_given_up(graph: Graph, gate: Gate) -> None:
    given_up = trio.CancelScope()

    async def run(session: pl.Session) -> None:
        with given_up:
            await session.run(feeds(1))

    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(graph), faults=PROMPT) as session:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, session)
                await gate.reached()
                given_up.cancel()
            assert given_up.cancelled_caught
            assert (await session.run(feeds(2)))["y"].tolist() == answer(2)


@pytest.mark.slow
async def test_the_opening_of_a_session_can_be_given_up(graph: Graph, gate: Gate) -> None:
    plan, opened = planned(graph, shapes={"x": (N,)}), trio.Event()
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            given_up = nursery.cancel_scope

            async def give_up() -> None:
                await gate.reached()
                given_up.cancel()

            nursery.start_soon(give_up)
            async with pl.Session(plan, faults=PROMPT):
                opened.set()
        assert given_up.cancelled_caught
    assert not opened.is_set()
