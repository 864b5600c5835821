"""Cancellation at every moment of the loop: before and after each step of each task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from moments import cancel_at_each_moment
from patience import WAIT_S
from plait.devices.sim import SimDevice, SimModel
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.runtime.events import DeviceRestored, SessionEvent
from resources import held, left_since

from .subjects import (
    CASES,
    Feeds,
    Watched,
    consume,
    expected,
    planned,
    run_one,
    same,
    two_steps,
)


@pytest.mark.parametrize("case", CASES)
async def test_a_run_cancelled_at_any_moment_leaves_the_session_usable(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot, or as often as there are slots: a lost one would stop the next run.

    What is quick enough to run where it is asked for has no moments: here lanes run it all.
    """
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: False)
    monkeypatch.setattr(Estimates, "is_quick", lambda *_: False)
    make, feed = CASES[case]
    plan, feeds = make(), feed()
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            run = partial(run_one, session, feeds)
            moments = await cancel_at_each_moment(run, run, repeats=plan.max_in_flight)
    assert moments > 1


# streams


@pytest.mark.parametrize(
    ("case", "asynchronous"),
    [
        ("small arrays", False),
        ("small arrays", True),
        ("large arrays", False),
        ("shapes that depend on values", True),
    ],
)
async def test_a_stream_cancelled_at_any_moment_leaves_the_session_usable(
    case: str, asynchronous: bool
) -> None:
    make, feed = CASES[case]
    source = Watched(feed(), 3, asynchronous=asynchronous)

    async def check() -> None:
        assert not source.open
        await run_one(session, feed())

    with trio.fail_after(WAIT_S):
        async with pl.Session(make().replan(2)) as session:
            stream = partial(consume, session, source)
            moments = await cancel_at_each_moment(stream, check, repeats=2)
    assert moments > 10


@pytest.mark.parametrize(
    "options",
    [{"ordered": False}, {"copy": False}, {"batch": 2}, {"deadline_s": 100}, {"keep": 1}],
    ids=lambda options: next(iter(options)),
)
async def test_a_stream_of_any_kind_cancelled_at_any_moment_leaves_the_session_usable(
    options: dict[str, Any],
) -> None:
    """Batches of two are ten numbers for a plan that takes any."""
    source = Watched(same(5), 3, asynchronous=False)
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(two_steps("n"), max_in_flight=2)) as session:
            stream = partial(consume, session, source, **options)
            run = partial(run_one, session, same(5))
            moments = await cancel_at_each_moment(stream, run, repeats=2)
    assert moments > 10


async def test_a_live_stream_of_a_join_cancelled_at_any_moment_closes_all_sources() -> None:
    b = pl.GraphBuilder("sum")
    b.output("y", b.op("Add", *(b.input(name, "float32", (2,)) for name in ("left", "right"))))
    stamped: list[Any] = [pl.Stamped(key, np.full(2, key, np.float32)) for key in range(3)]
    sides = {
        name: Watched(iter(stamped), 3, asynchronous=name == "left") for name in ("left", "right")
    }

    async def stream() -> None:
        joined = pl.join({name: side() for name, side in sides.items()}, by="key")
        async with session.stream(joined, keep=3) as results:
            async for item in results:
                await trio.lowlevel.checkpoint()
                assert item["y"].tolist() == [2 * item.index] * 2

    async def check() -> None:
        assert not any(side.open for side in sides.values())
        assert (await session.run({name: np.ones(2, "f") for name in sides}))["y"][0] == 2

    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(b.build(), max_in_flight=2)) as session:
            moments = await cancel_at_each_moment(stream, check, repeats=2)
    assert moments > 10


@pytest.mark.parametrize("asynchronous", [False, True], ids=["generator", "async generator"])
async def test_a_consumer_may_leave_after_any_result(asynchronous: bool) -> None:
    source = Watched(same(4), 6, asynchronous=asynchronous)
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(two_steps(4), max_in_flight=2)) as session:
            for wanted in range(6):
                async with session.stream(source(), max_in_flight=2) as results:
                    for _ in range(wanted):
                        expected((await anext(results)).outputs)
                assert not source.open
                await run_one(session, same(4))


# opening and closing


async def open_run_and_close(plan: pl.Plan, feeds: Iterator[Feeds]) -> None:
    async with pl.Session(plan) as session:
        await run_one(session, feeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "shape", "stride"), [("cpu:1", 4, 1), ("cpu:1", "n", 3), ("worker:0", 4, 19)]
)
async def test_a_session_cancelled_at_any_moment_leaves_nothing_behind(
    second: str, shape: int | str, stride: int
) -> None:
    plan = planned(two_steps(shape), second)
    before = held()

    async def check() -> None:
        assert not left_since(before)

    with trio.fail_after(WAIT_S):
        life = partial(open_run_and_close, plan, same(4))
        moments = await cancel_at_each_moment(life, check, stride=stride)
    assert moments > 20


# a device that dies


@pytest.mark.parametrize("standby", [True, False])
async def test_a_run_cancelled_at_any_moment_of_a_recovery_leaves_the_session_usable(
    standby: bool,
) -> None:
    sim = SimDevice("sim:a", SimModel(flops_per_s=1e12))
    plan = pl.plan(two_steps(4), [sim, "cpu"], pin={"first": "sim:a", "second": "cpu"})
    faults = pl.FaultPolicy(standby=standby, restart_s=0)
    before = held()

    back = trio.Event()

    def observe(event: SessionEvent) -> None:
        if isinstance(event, DeviceRestored):
            back.set()

    async def lose_and_run() -> None:
        sim.lose("unplugged")
        await run_one(session, same(4))

    async def run_until_it_is_back() -> None:
        nonlocal back
        await run_one(session, same(4))
        await back.wait()
        back = trio.Event()

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=faults, on_event=observe) as session:
            await run_one(session, same(4))
            moments = await cancel_at_each_moment(lose_and_run, run_until_it_is_back)
    assert moments > 10
    assert not left_since(before)


async def test_a_session_left_at_any_moment_of_a_recovery_leaves_nothing_behind() -> None:
    before = held()

    async def lose_run_and_leave() -> None:
        sim = SimDevice("sim:a", SimModel(flops_per_s=1e12))
        plan = pl.plan(two_steps(4), [sim, "cpu"], pin={"first": "sim:a", "second": "cpu"})
        async with pl.Session(plan) as session:
            await run_one(session, same(4))
            sim.lose("unplugged")
            await run_one(session, same(4))

    async def check() -> None:
        assert not left_since(before)

    with trio.fail_after(WAIT_S):
        moments = await cancel_at_each_moment(lose_run_and_leave, check, stride=3)
    assert moments > 20
