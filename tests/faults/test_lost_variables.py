"""Variables of sessions whose devices die: nothing is assigned twice, or half, or silently lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices.sim import SimDevice
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

from .fault_devices import Mayfly, Observed, Stubborn


def counting() -> Graph:
    """Return a graph that adds x to `total`, and counts in `count`."""
    b = pl.GraphBuilder("counting")
    total = b.variable("total", np.zeros(2, np.float32))
    count = b.variable("count", np.float32(0))
    x = b.input("x", "float32", (2,))
    b.output("before", b.op("Neg", total, name="neg"))
    more = b.assign(total, b.op("Add", total, x, name="add"), name="assign total")
    once = b.assign(count, b.op("Add", count, 1.0, name="one"), name="assign count")
    b.output("train", b.group(more, once, name="group"))
    return b.build()


def planned(device: SimDevice | WorkerDevice, *, alone: bool = False) -> pl.Plan:
    """Plan with `add` on the device, or all; `total` is read on the cpu too unless it is alone."""
    nodes = ("neg", "assign total", "one", "assign count", "group")
    rest = dict.fromkeys(nodes, device.name if alone else "cpu")
    return pl.plan(counting(), [device, "cpu"], pin={"add": device.name, **rest})


def fed(value: float) -> dict[str, Array]:
    return {"x": np.full(2, value, np.float32)}


def held_by(session: pl.Session) -> tuple[list[float], float]:
    return session.variables["total"].tolist(), float(session.variables["count"])


def kill(worker: WorkerDevice) -> None:
    assert worker.pid is not None
    with suppress(ProcessLookupError):  # it may not be back yet
        os.kill(worker.pid, signal.SIGKILL)


async def test_items_of_a_killed_worker_assign_once() -> None:
    worker = WorkerDevice("worker:0")
    observed = Observed()

    def source() -> Iterator[dict[str, Array]]:
        for value in range(40):
            if value in (5, 25):
                kill(worker)
            yield fed(value)

    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(worker, alone=True), on_event=observed) as session:
            async with session.stream(source()) as results:
                errors = [item.error async for item in results]
            assert errors == [None] * 40
            assert held_by(session) == ([780, 780], 40)
    assert "DeviceLost" in observed.kinds


async def add_and_count(session: pl.Session) -> None:
    """Run items, one of which may fail: variables hold those that did not, each once."""
    done: list[float] = []
    for value in (1, 2, 4, 8):
        try:
            await session.run(fed(value))
        except pl.DeviceError:
            continue
        done.append(value)
    assert len(done) >= 3
    assert held_by(session) == ([sum(done)] * 2, len(done))


@pytest.mark.parametrize("death", range(1, 28, 2))
async def test_variables_are_whole_whenever_a_device_dies(death: int) -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(Mayfly({death}))) as session:
            await add_and_count(session)


async def test_a_plan_that_stands_in_goes_on_with_the_same_values() -> None:
    sim, observed = Stubborn(refusals=1_000), Observed()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim), on_event=observed) as session:
            await session.run(fed(1))
            sim.lose("unplugged")
            for value in (2, 4):
                await session.run(fed(value))
            assert held_by(session) == ([7, 7], 3)
    assert "PlanReplaced" in observed.kinds


async def test_what_only_a_lost_device_held_is_an_error_until_it_is_loaded(tmp_path: Path) -> None:
    sim, path = SimDevice("sim:a"), tmp_path / "values"
    observed = Observed()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim, alone=True), on_event=observed) as session:
            await session.run(fed(1))
            await session.save_variables(path)
            await session.run(fed(1))
            sim.lose("unplugged")
            with pytest.raises(pl.DeviceError):
                await session.run(fed(1))
            await observed.restored.wait()
            with pytest.raises(pl.DeviceLostError, match="'total' held lay on a device that was"):
                session.variables["total"]
            with pytest.raises(pl.DeviceLostError, match=r"load what was saved"):
                await session.run(fed(1))
            await session.load_variables(path)
            await session.run(fed(4))
            assert held_by(session) == ([5, 5], 2)


@pytest.mark.parametrize("death", range(6, 16))
async def test_values_that_change_places_on_a_device_are_whole_or_lost(death: int) -> None:
    wanted, lost = 0.0, 0
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(Mayfly({death}), alone=True)) as session:
            for value in (1, 2, 4, 8, 16):
                with suppress(pl.DeviceError):
                    await session.run(fed(value))
                    wanted += value
                try:
                    found = await session.fetch_variables()
                except pl.DeviceError:
                    lost += 1
                    wanted = 0
                    zeros = {"total": np.zeros(2, np.float32), "count": np.float32(0)}
                    await session.assign(zeros)
                else:
                    assert found["total"].tolist() == [wanted, wanted]
            assert lost <= 2
            await session.run(fed(32))
            assert held_by(session)[0] == [wanted + 32] * 2


def counting_found(device: SimDevice) -> pl.Plan:
    """Plan a graph that adds what is not zero to `total`, in parts, of which a device runs some."""
    b = pl.GraphBuilder("counting what is found")
    total, count = b.variable("total", np.zeros(2, np.float32)), b.variable("count", np.float32(0))
    x = b.input("x", "float32", (2,))
    places = b.op("Reshape", b.op("NonZero", b.op("Mul", x, 1.0, name="first")), np.array([-1]))
    found = b.op("Gather", x, places, name="second")
    more = b.op("Add", total, b.op("ReduceMean", found, keepdims=False), name="third")
    b.output("train", b.group(b.assign(total, more), b.assign(count, b.op("Add", count, 1.0))))
    pins = dict.fromkeys(("first", "second", "third"), device.name)
    return pl.plan(b.build(), [device, "cpu"], pin=pins)


@pytest.mark.parametrize("death", range(6, 16))
async def test_items_in_parts_assign_once_whenever_a_device_dies(death: int) -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(counting_found(Mayfly({death}))) as session:
            await add_and_count(session)
