"""The status of a session at a moment, and what is kept of items that are gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from plait.scheduler.runtime.status import DeviceStatus, SubgraphStatus
from trio.testing import wait_all_tasks_blocked

ITEM = {"x": np.ones(8, np.float32)}


def relu(device: str | SteppedDevice, max_in_flight: int) -> pl.Plan:
    builder = pl.GraphBuilder("watched")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (8,))))
    return pl.plan(builder.build(), device, max_in_flight=max_in_flight)


async def test_the_status_counts_what_is_at_work_and_what_waits() -> None:
    device = SteppedDevice("stepped", private=False)
    plan = relu(device, 3)
    assert plan.memory is not None
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        assert session.status().in_flight == 0
        for _ in range(3):
            nursery.start_soon(session.run, ITEM)
        await wait_all_tasks_blocked()
        status = session.status()
        assert (status.done, status.in_flight) == (0, 3)
        assert status.devices == {"stepped": DeviceStatus(at_work=1, waiting=2)}
        assert status.memory == {"host": plan.memory.nbytes}
        device.step()
        await wait_all_tasks_blocked()
        status = session.status()
        assert (status.done, status.failed, status.in_flight) == (1, 0, 2)
        assert status.devices["stepped"] == DeviceStatus(at_work=1, waiting=1)
        device.step()
        device.step()
        await wait_all_tasks_blocked()
        assert session.status().to_dict()["devices"] == {"stepped": {"at_work": 0, "waiting": 0}}


async def test_failed_items_are_counted_as_such() -> None:
    @pl.operator(name="test_status.refuse")
    def refuse(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise ValueError("no")

    builder = pl.GraphBuilder("fails")
    builder.output("y", builder.call(refuse, builder.input("x", "float32", (8,))))
    async with pl.Session(pl.plan(builder.build())) as session:
        with pytest.raises(pl.KernelError):
            await session.run(ITEM)
        status = session.status()
        assert (status.done, status.failed) == (1, 1)


async def test_items_of_a_batch_and_items_that_never_start_are_counted_too() -> None:
    builder = pl.GraphBuilder("rows")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n", 8))))
    items = [{"x": np.ones((1, 8), np.float32)}, {}] * 3
    async with pl.Session(pl.plan(builder.build())) as session:
        async with session.stream(items, batch=3) as results:
            errors = [one.error async for one in results]
        status = session.status()
    assert errors.count(None) == 3
    assert (status.done, status.failed) == (6, 3)


async def test_a_session_that_is_not_traced_only_counts() -> None:
    async with pl.Session(relu("cpu", 1), trace=False, measure=True) as session:
        await session.run(ITEM)
        assert session.status().done == 1
        profile = session.profile()
    assert (profile.records, profile.nodes) == ((), ())
    assert profile.table().startswith("0 items")


async def test_the_status_tells_what_each_subgraph_does() -> None:
    device = SteppedDevice("stepped", private=False)
    async with pl.Session(relu(device, 3)) as session, trio.open_nursery() as nursery:
        (name,) = session.status().subgraphs
        assert session.status().subgraphs[name].state == "idle"
        for _ in range(2):
            nursery.start_soon(session.run, ITEM)
        await wait_all_tasks_blocked()
        status = session.status()
        assert status.subgraphs == {name: SubgraphStatus(at_work=1, waiting=1)}
        assert status.to_dict()["subgraphs"][name]["state"] == "running"
        device.step()
        device.step()
    assert SubgraphStatus(waiting=1).state == "ready"
