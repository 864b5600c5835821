"""The rule for steps that need no thread of their own: sessions, simulations and figures agree."""

from __future__ import annotations

from array import array

import numpy as np
import plait as pl
from fake_devices import PrivateDevice
from nested_graphs import doubling_body
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.scheduler.costs.figures import HERE, LOOP
from plait.scheduler.dispatch.inline_policy import inline_steps
from plait.scheduler.plans.placement import Transfer, summarize_step
from plait.scheduler.profile import PlanTimes, Profile, Record
from plait.scheduler.profile.overheads import measure_hops
from plait.scheduler.profile.timestamps import Timestamps
from plait.scheduler.simulation.lanes import make_workload


def looping() -> pl.Graph:
    """Return a graph of a Loop of as many iterations as a number says that is computed."""
    b = pl.GraphBuilder("looping")
    x = b.input("x", "float32", (2,))
    trips = b.op("Cast", b.op("ReduceMax", x, keepdims=False), to="int64")
    b.output("y", b.op("Loop", trips, None, x, body=doubling_body(), outputs=1, name="loop"))
    return b.build()


async def agreed(plan: pl.Plan) -> list[str]:
    """Return which steps may run on any thread; a session and the simulation say the same."""
    found = inline_steps(plan.steps, plan.prototypes)
    assert make_workload(plan.steps, plan.prototypes, plan.costs).inline == found
    async with pl.Session(plan) as session:
        (slots,) = session._open_runtime()._open_plans._slots.values()
        bound = slots.open_plan.make_slot(0).inline
        assert {index for index, here in enumerate(bound) if here is not None} == found
    return [plan.steps[index].name for index in sorted(found)]


async def test_kernels_and_functions_without_effects_run_on_any_thread(
    forget_operators: None,
) -> None:
    @pl.operator(name="test_inline_policy.plain")
    def plain(x: np.ndarray) -> np.ndarray:
        return x

    @pl.operator(name="test_inline_policy.acts", effects=True)
    def acts(x: np.ndarray) -> np.ndarray:
        return x

    b = pl.GraphBuilder("several")
    x = b.call(plain, b.input("x", "float32", (2,)), name="plain")
    x = b.op("Neg", b.call(acts, x, name="acts"), name="neg")
    b.output("y", b.op("Abs", x, name="abs"))
    pins = {"plain": "cpu", "acts": "cpu:1", "neg": "npu", "abs": "worker:0"}
    devices: list[str | PrivateDevice] = ["cpu", "cpu:1", PrivateDevice("npu"), "worker:0"]
    plan = pl.plan(b.build(), devices, pin=pins, passes=())
    assert any(isinstance(step.work, Transfer) and step.device == "npu" for step in plan.steps)
    assert await agreed(plan) == ["plain", "neg"]


async def test_loops_keep_to_their_own_thread() -> None:
    assert await agreed(pl.plan(looping(), ["cpu"])) == []


async def test_nothing_runs_ahead_of_a_virtual_clock() -> None:
    b = pl.GraphBuilder("virtual")
    x = b.op("Neg", b.input("x", "float32", (2,)), name="neg")
    b.output("y", b.op("Abs", x, name="abs"))
    pins = {"neg": "cpu", "abs": "slow"}
    slow = SimDevice("slow", SimModel(), VirtualClock())
    assert await agreed(pl.plan(b.build(), ["cpu", slow], pin=pins, passes=())) == []


def test_a_quick_loop_tells_how_its_thread_is_woken() -> None:
    plan = pl.plan(looping(), ["cpu"])
    times = array("q", [10_000, 13_000, 14_000])
    part = PlanTimes(tuple(map(summarize_step, plan.steps)), times)
    record = Record((part,), Timestamps(admitted_ns=0, landed_ns=20_000), failed=False)
    found = measure_hops(Profile((record,), ()), plan)
    assert (LOOP, "cpu") in found
    assert (LOOP, HERE) not in found
