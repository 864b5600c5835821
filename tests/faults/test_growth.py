"""Growth of a session by faults: as many objects after many losses as after a few."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices.sim import SimDevice
from plait.scheduler.runtime import recorder

from .fault_graphs import answer, feeds, halves

LOSSES = 25
PINS = {"first": "sim:a", "second": "cpu"}


@pytest.mark.slow
@pytest.mark.parametrize("standby", [True, False])
async def test_losses_and_changing_shapes_leave_nothing_that_adds_up(
    standby: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of items and stand-ins of plans are bounded, and nothing else stays."""
    monkeypatch.setattr(recorder, "KEPT_SPANS", 20)
    sim, draw = SimDevice("sim:a"), random.Random(1)
    plan = pl.plan(halves("n"), [sim, "cpu"], pin=PINS, max_in_flight=2)
    policy = pl.FaultPolicy(restart_s=0, standby=standby)
    counts = list[int]()
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=policy) as session:
            for _ in range(4):
                for _ in range(LOSSES):
                    sim.lose("unplugged")
                    for n in draw.sample(range(1, 30), 2):
                        outputs = await session.run(feeds(1, n))
                        assert outputs["y"].tolist() == answer(1, n)
                    while sim.failure is not None:
                        await trio.lowlevel.checkpoint()
                gc.collect()
                counts.append(len(gc.get_objects()))
    # A leak adds objects in each round; other parts of the process may add some in one.
    assert min(after - before for before, after in pairwise(counts[1:])) < LOSSES


async def test_a_stand_in_is_forgotten_with_the_plan_that_it_stands_for() -> None:
    sim = SimDevice("sim:a")
    plan = pl.plan(halves("n"), [sim, "cpu"], pin=PINS)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=pl.FaultPolicy(restart_s=0)) as session:
            assert session._runtime is not None
            recovery = session._runtime._recovery
            for n in range(1, 20):
                sim.lose()
                assert (await session.run(feeds(1, n)))["y"].tolist() == answer(1, n)
                while sim.failure is not None:
                    await trio.lowlevel.checkpoint()
            gc.collect()
            assert len(recovery._standbys) <= 1
