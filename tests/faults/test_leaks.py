"""However a session ends, it leaves no thread, process, descriptor or mapping."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices import Device
from plait.devices.cpu import CpuDevice
from plait.devices.worker.device import WorkerDevice
from plait.graph.values.tensor import Array
from python_functions import fail
from resources import held, left_since

X = {"x": np.arange(-1, 3, dtype=np.float32)}


class Unopenable(WorkerDevice):
    """Starts its process, and fails then."""

    def open(self, cores: int | None = None) -> None:
        super().open(cores)
        self.close()
        raise pl.DeviceUnavailableError("refused")


def planned(device: Device, *, failing: bool = False) -> pl.Plan:
    """Return a plan that begins on one device and ends on another."""
    builder = pl.GraphBuilder("leaks")
    h = builder.op("Relu", builder.input("x", "float32", ("n",)), name="first")
    last = builder.call(fail, h, name="last") if failing else builder.op("Exp", h, name="last")
    builder.output("y", last)
    return pl.plan(builder.build(), ["cpu", device], pin={"last": device.name}, max_in_flight=2)


async def endless() -> AsyncIterator[dict[str, Any]]:
    while True:
        yield X


async def a_function_raises(device: Device) -> None:
    async with pl.Session(planned(device, failing=True)) as session:
        await session.run(X)


async def a_consumer_raises(device: Device) -> None:
    async with pl.Session(planned(device)) as session:
        async with session.stream(endless()) as results:
            async for item in results:
                raise ZeroDivisionError(item.index)


async def a_second_device_refuses(worker: WorkerDevice) -> None:
    builder = pl.GraphBuilder("two workers")
    h = builder.op("Relu", builder.input("x", "float32", (4,)), name="first")
    builder.output("y", builder.op("Exp", h, name="second"))
    devices = [worker, Unopenable("worker:1")]
    plan = pl.plan(builder.build(), devices, pin={"first": "worker:0", "second": "worker:1"})
    async with pl.Session(plan):
        pytest.fail("it opened")


async def a_worker_is_killed_and_the_session_left_at_once(worker: WorkerDevice) -> None:
    async with pl.Session(planned(worker)) as session:
        await session.run(X)
        kill(worker)


async def a_worker_is_killed_and_an_item_given_up(worker: WorkerDevice) -> None:
    async with pl.Session(planned(worker)) as session:
        await session.run(X)
        kill(worker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, X)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


def kill(worker: WorkerDevice) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


ENDS: dict[Callable[[Any], Awaitable[None]], tuple[Callable[[], Device], Any]] = {
    a_function_raises: (partial(WorkerDevice, "worker:0"), pl.KernelError),
    a_consumer_raises: (partial(CpuDevice, "cpu:1"), ZeroDivisionError),
    a_second_device_refuses: (partial(WorkerDevice, "worker:0"), pl.DeviceUnavailableError),
    a_worker_is_killed_and_the_session_left_at_once: (partial(WorkerDevice, "worker:0"), None),
    a_worker_is_killed_and_an_item_given_up: (partial(WorkerDevice, "worker:0"), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_nothing_is_left_when(end: Callable[[Any], Awaitable[None]]) -> None:
    before, (device, raised) = held(), ENDS[end]

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            await end(device())

    if raised is None:
        trio.run(main)
    else:
        with pytest.raises(raised):
            trio.run(main)
    assert not left_since(before)


def test_opening_again_and_again_adds_nothing() -> None:
    plan = pl.plan(planned(WorkerDevice("worker:0")).graph, ["cpu", "cpu:1"])
    pl.run(plan, X)
    before = held()
    for _ in range(10):
        pl.run(plan, X)
    assert not left_since(before)


@pl.operator(name="test_leaks.interrupt")
def interrupt(x: Array) -> Array:
    signal.raise_signal(signal.SIGINT)  # wherever it is sent, the main thread gets it
    return x


@pytest.mark.parametrize("use", [pl.BlockingSession.run, pl.BlockingSession.stream])
def test_control_c_while_a_blocking_session_works_leaves_nothing_behind(use: Any) -> None:
    builder = pl.GraphBuilder("interrupted")
    builder.output("y", builder.call(interrupt, builder.input("x", "float32", (4,))))
    plan, before = pl.plan(builder.build()), held()
    with pytest.raises(KeyboardInterrupt):
        with pl.BlockingSession(plan) as session:
            if use is pl.BlockingSession.run:
                session.run(X)
            else:
                list(session.stream([X] * 3))
    del session
    assert not left_since(before)
