"""In which order steps start, on devices whose pace the test decides, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import plait as pl
import trio
from fake_devices import SteppedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.device import OnDone, Program
from plait.devices.event import Event
from plait.devices.program import BoundProgram
from plait.graph.core.ir import Graph
from plait.scheduler.runtime.opened.executor import Execution
from random_graphs import expected, feeds, graphs
from staged import Guest, Stage

NAMES = ("a", "b", "c")


class WatchedDevice(SteppedDevice):
    """Calls a function with whatever it is given, before it takes it."""

    seen: Callable[[Execution, int], None]

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        self.seen(on_done.func.__self__, on_done.args[0])  # type: ignore[union-attr]
        return super().submit(program, waits, on_done)


class WillingDevice(SteppedDevice):
    """Runs what is quick at once, if it feels like it; never beside something else."""

    random: Random
    taken = 0

    def step(self) -> None:
        assert not self.is_working
        super().step()

    is_working = False

    def run_inline(self, program: Program, event: Event) -> bool:
        assert not self.queue, "the lane is idle"
        assert isinstance(program, BoundProgram)
        if self.random.random() < 0.3:
            return False
        self.taken += 1

        def work() -> None:
            assert not self.is_working
            self.is_working = True
            program.run(event)
            self.is_working = False

        event.run(work)
        return True


def stream(stage: Stage, count: int, limit: int, random: Random) -> list[Guest]:
    """Run items in a random order, no more than so many at a time."""
    fed = [feeds(stage.plan.graph, seed) for seed in range(count)]
    guests: list[Guest] = []
    while len(stage.finished) < count:
        in_flight = len(guests) - len(stage.finished)
        hungry = len(guests) < count and in_flight < limit
        if hungry and (random.random() < 0.5 or not stage.busy()):
            guests.append(stage.start(len(guests), fed[len(guests)]))
        else:
            random.choice(stage.busy()).step()
    return guests


def check_bits(stage: Stage, guests: Sequence[Guest]) -> None:
    for guest in guests:
        assert guest.execution.error is None
        for name, array in expected(stage.plan.graph, guest.inputs).items():
            np.testing.assert_array_equal(guest.results[name], array)


def done(execution: Execution, step: int) -> bool:
    event = execution.events[step]
    return event is not None and event.done


def pins(graph: Graph, random: Random) -> dict[str, str]:
    return {node.name: random.choice(NAMES) for node in graph.nodes}


@given(
    graph=graphs(),
    random=st.randoms(use_true_random=False),
    limit=st.integers(1, 5),
    copies=st.sampled_from([None, 1, 2]),
)
@settings(max_examples=40)
def test_of_the_steps_that_a_lane_could_do_it_is_given_the_first_of_the_oldest_item(
    graph: Graph, random: Random, limit: int, copies: int | None
) -> None:
    devices = [WatchedDevice(name, private=False) for name in NAMES]
    stage = Stage(graph, devices, pins(graph, random), limit, copies)
    live: dict[Execution, None] = {}
    rank, steps = stage.open_plan.order.rank, stage.plan.steps

    def seen(execution: Execution, step: int) -> None:
        live[execution] = None
        device = stage.devices[steps[step].device]
        assert not device.queue, "the lane does one thing at a time"
        assert all(done(execution, one) for one in steps[step].waits)
        for other in live:
            for index in waiting(other):
                if steps[index].device == device.name:
                    key, its_key = (execution._age, rank[step]), (other._age, rank[index])
                    assert key <= its_key

    def waiting(execution: Execution) -> list[int]:
        """Return what could start: by definition, or as it says where memory has to be free."""
        ready: Sequence[int] = execution.ready_ns
        if stage.guard is None:
            ready = [all(done(execution, one) for one in step.waits) for step in steps]
        return [i for i, event in enumerate(execution.events) if event is None and ready[i]]

    for device in devices:
        device.seen = seen
    check_bits(stage, stream(stage, 8, limit, random))
    stage.open_plan.close()


@given(
    graph=graphs(),
    seed=st.integers(0, 1 << 32),
    limit=st.integers(1, 5),
    copies=st.sampled_from([None, 1, 2]),
)
@settings(max_examples=40)
def test_whoever_runs_a_quick_step_the_bits_are_the_same(
    graph: Graph, seed: int, limit: int, copies: int | None
) -> None:
    random = Random(seed)  # what is quick depends on the machine: nothing may be drawn by that
    devices = [WillingDevice(name, private=False) for name in NAMES]
    for device in devices:
        device.random = random
    stage = Stage(graph, devices, pins(graph, random), limit, copies, quick=True)
    guests = stream(stage, 8, limit, random)
    check_bits(stage, guests)
    stage.open_plan.close()


@settings(max_examples=15)
@given(graphs(max_nodes=20), st.randoms(use_true_random=False), st.integers(1, 4))
def test_items_on_threads_of_their_own_give_the_same_bits_as_one_by_one(
    graph: Graph, random: Random, limit: int
) -> None:
    """Threads, and steps that run wherever they became ready, in a stream beside single runs."""
    names = ["cpu", "cpu:1", "cpu:2"]
    where = {node.name: random.choice(names) for node in graph.nodes}
    plan = pl.plan(graph, names, pin=where, max_in_flight=limit)
    fed = [feeds(graph, seed) for seed in range(12)]

    def check(seed: int, results: Any) -> None:
        for name, array in expected(graph, fed[seed]).items():
            np.testing.assert_array_equal(results[name], array)

    async def single(session: pl.Session) -> None:
        for seed in range(12):
            check(seed, await session.run(fed[seed]))

    async def run() -> None:
        async with pl.Session(plan) as session, trio.open_nursery() as nursery:
            nursery.start_soon(single, session)
            async with session.stream(fed) as results:
                async for item in results:
                    check(item.index, item)

    trio.run(run)
