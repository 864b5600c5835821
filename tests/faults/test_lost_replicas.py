"""Replicas on real workers, one of which is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import ordered_functions
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.events import DeviceLost, PlanReplaced, SessionEvent

from . import fault_functions as functions
from .fault_graphs import answer, calling, feeds, halves

N_ITEMS = 60


def planned(graph: Graph) -> pl.Plan:
    first = graph.nodes[0].name
    pins = {first: "worker:0..1", "second": "cpu"}
    return pl.plan(graph, ["cpu", "worker:0..1"], pin=pins, max_in_flight=4)


def share(profile: Any) -> Counter[str]:
    spans = (span for record in profile.records for span in record.spans())
    return Counter(span.step.device for span in spans)


async def test_two_workers_share_the_items() -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(halves())) as session:
            async with session.stream(map(feeds, range(N_ITEMS))) as stream:
                found = [item["y"].tolist() async for item in stream]
    assert found == [answer(value) for value in range(N_ITEMS)]
    ran = share(session.profile())
    assert ran["worker:0"] + ran["worker:1"] == N_ITEMS
    assert min(ran["worker:0"], ran["worker:1"]) >= N_ITEMS // 4


@pytest.mark.slow
@pytest.mark.parametrize("function", [None, functions.twice])
async def test_a_replica_that_is_killed_leaves_a_stream_whole(
    function: Callable[..., Array] | None,
) -> None:
    """Also where no other kind of device may stand in for it, as with Python functions."""
    seen: list[SessionEvent] = []
    graph = halves() if function is None else calling(function)
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(graph), on_event=seen.append) as session:
            assert session._runtime is not None
            fated = session._runtime._devices.by_name["worker:1"]
            assert isinstance(fated, WorkerDevice)

            def source() -> Iterator[dict[str, Any]]:
                for value in range(N_ITEMS):
                    if value == N_ITEMS // 2:
                        assert fated.pid is not None
                        os.kill(fated.pid, signal.SIGKILL)
                    yield feeds(value)

            async with session.stream(source()) as stream:
                found = [item["y"].tolist() async for item in stream]
    assert found == [answer(value) for value in range(N_ITEMS)]
    assert [event.device for event in seen if isinstance(event, DeviceLost)] == ["worker:1"]
    assert not any(isinstance(event, PlanReplaced) for event in seen)


async def test_a_killed_replica_does_not_break_the_order_of_items() -> None:
    ordered_functions.seen.clear()
    b = pl.GraphBuilder("tracked")
    h = b.call(functions.twice, b.input("x", "int32", (4,)), name="first")
    b.output("y", b.call(ordered_functions.record, h, name="track"))
    plan = pl.plan(b.build(), ["cpu", "worker:0..2"], pin={"first": "worker:0..2"}, max_in_flight=6)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            assert session._runtime is not None
            workers = session._runtime._devices.by_name

            def source() -> Iterator[dict[str, Any]]:
                for value in range(N_ITEMS):
                    if value % 20 == 10:
                        fated = workers[f"worker:{value // 20}"]
                        assert isinstance(fated, WorkerDevice)
                        assert fated.pid is not None
                        os.kill(fated.pid, signal.SIGKILL)
                    yield {"x": np.full(4, value, np.int32)}

            async with session.stream(source()) as stream:
                found = [int(item["y"][0]) async for item in stream]
    assert found == [2 * value for value in range(N_ITEMS)]
    assert ordered_functions.seen == found


@pytest.mark.slow
@pytest.mark.parametrize("n_keys", [0, 7])
async def test_a_killed_replica_leaves_state_that_items_hand_on_whole(n_keys: int) -> None:
    """The state of the session, or of each key."""
    b = pl.GraphBuilder("sums")
    h = b.call(functions.twice, b.input("x", "int32", (4,)), name="first")
    total = b.variable("total", np.zeros(4, "int32"))
    b.output("sum", total.assign(total + h))
    pins = {"first": "worker:0..2", "*": "cpu"}
    plan = pl.plan(b.build(), ["cpu", "worker:0..2"], pin=pins, max_in_flight=6)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            assert session._runtime is not None
            workers = session._runtime._devices.by_name

            def source() -> Iterator[dict[str, Any]]:
                for value in range(N_ITEMS):
                    if value % 20 == 10:
                        fated = workers[f"worker:{value // 20}"]
                        assert isinstance(fated, WorkerDevice)
                        assert fated.pid is not None
                        os.kill(fated.pid, signal.SIGKILL)
                    yield {"x": np.full(4, value, np.int32)}

            find_key = (lambda item: int(item["x"][0]) % n_keys) if n_keys else None
            async with session.stream(source(), key=find_key) as stream:
                found = [int(item["sum"][0]) async for item in stream]
            keys = await session.list_keys() if n_keys else [None]
            values = {key: await session.fetch_variables(key=key) for key in keys}
    assert len(keys) == (n_keys or 1)
    for place, key in enumerate(range(n_keys) if n_keys else [None]):
        sums = found[place :: len(keys)]
        assert sums == np.cumsum(2 * np.arange(N_ITEMS)[place :: len(keys)]).tolist()
        assert values[key]["total"][0] == sums[-1]
