"""Devices that are lost under items that fetch something else than all outputs."""

from __future__ import annotations

import plait as pl
import trio
from patience import WAIT_S
from plait.devices.sim import SimDevice

from .fault_devices import Observed, Stubborn, planned, right
from .fault_graphs import answer, feeds


def halved(value: float) -> list[float]:
    return [number / 2 for number in answer(value)]


async def test_what_is_fetched_is_computed_on_what_remains() -> None:
    sim, observed = Stubborn(refusals=1_000), Observed()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim), on_event=observed) as session:
            assert (await session.run(feeds(1), "first")).tolist() == halved(1)
            sim.lose("unplugged")
            for value in range(3):
                assert (await session.run(feeds(value), ["first"]))[0].tolist() == halved(value)
                assert await right(session, value)
    assert observed.kinds[:2] == ["DeviceLost", "ItemReplayed"]


async def test_a_stream_that_fetches_goes_on_over_a_device_that_is_lost() -> None:
    sim, observed = SimDevice("sim:a"), Observed()
    source = [feeds(value) for value in range(8)]
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim, max_in_flight=2), on_event=observed) as session:
            async with session.stream(source, fetches=("first", "y")) as results:
                async for item in results:
                    first, y = item.fetched
                    assert first.tolist() == halved(item.index)
                    assert y.tolist() == answer(item.index)
                    if item.index == 3:
                        sim.lose()
    assert "DeviceLost" in observed.kinds
