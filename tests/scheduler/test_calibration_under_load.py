"""Calibration on a machine that others use too: the same figures as on a quiet one, or none.

What happens is simulated; then whoever computes loses its core every few milliseconds, and has it
again when others were on.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import plait as pl
import pytest
import trio
from machines import chain
from plait.scheduler.costs.figures import LOOP, Loop
from plait.scheduler.profile import PlanTimes, Record
from plait.scheduler.tuning.calibration import measure_overheads
from plait.scheduler.tuning.contention import (
    Disturbance,
    Work,
    extract_beginning,
    measure_contention,
)

SLICE_NS = 4_000_000
KNOWN = pl.Costs(
    hops={
        (LOOP, "cpu"): 40e-6,
        ("cpu", LOOP): 45e-6,
        ("cpu", "cpu"): 12e-6,
        (LOOP, "worker:0"): 50e-6,
        ("worker:0", LOOP): 60e-6,
        ("cpu", "worker:0"): 55e-6,
        ("worker:0", "cpu"): 65e-6,
        ("worker:0", "worker:0"): 20e-6,
    },
    loop=Loop(30e-6, 80e-6),
)


class Core:
    """Turns the time that work takes into the time that passes, where others want the core too."""

    def __init__(self, load: int, jitter: float, seed: int = 0) -> None:
        self._others_ns, self._jitter = (load - 1) * SLICE_NS, jitter
        self._dice, self._left = random.Random(seed), float(SLICE_NS)
        self.now = 0.0

    def spend(self, ns: float) -> int:
        """Let work take its time, and return how much passed."""
        started, ns = self.now, ns * self._dice.uniform(1, 1 + self._jitter)
        while self._others_ns and ns > self._left:
            self.now += self._left + self._others_ns
            ns -= self._left
            self._left = SLICE_NS * self._dice.uniform(0.5, 1)
        self._left -= ns
        self.now += ns
        return round(self.now - started)


class Machine:
    """Streams of a plan, as simulations predict them, on a core that others use."""

    def __init__(self, plan: pl.Plan, core: Core) -> None:
        self._plan, self._core = plan, core

    async def stream(self, items: int, in_flight: int) -> Sequence[Record]:
        await trio.lowlevel.checkpoint()
        found = pl.simulate(self._plan, items=items, max_in_flight=in_flight, costs=KNOWN).profile
        moments = sorted({ns for one in found.records for ns in self._times(one)})
        clock, before = dict[int, int](), 0
        for ns in moments:
            self._core.spend(ns - before)
            clock[ns], before = self.clock(), ns
        return [self._moved(one, clock) for one in found.records]

    def clock(self) -> int:
        return round(self._core.now)

    @staticmethod
    def _times(record: Record) -> Sequence[int]:
        return [record.admitted_ns, record.landed_ns, *record.parts[0].times]

    @staticmethod
    def _moved(record: Record, clock: dict[int, int]) -> Record:
        (part,) = record.parts
        times = array("q", (clock[ns] for ns in part.times))
        marks = replace(
            record.marks,
            admitted_ns=clock[record.admitted_ns],
            landed_ns=clock[record.landed_ns],
        )
        return Record((PlanTimes(part.steps, times, part.pools),), marks, False)


def ways(load: int, jitter: float = 0.15) -> tuple[pl.Costs, list[str]]:
    """Return what is found, and what is said."""
    pins = {f"n{i}": "cpu" if i % 4 < 2 else "worker:0" for i in range(8)}
    plan = pl.plan(chain(8, side=256), ["cpu", "worker:0"], pin=pins, passes=())
    machine, notes = Machine(plan, Core(load, jitter)), list[str]()
    return trio.run(measure_overheads, plan, machine.stream, notes.append, machine.clock), notes


@pytest.mark.parametrize("load", [2, 4, 16])
def test_a_loaded_machine_tells_the_same_ways_within_half(load: int) -> None:
    (quiet, _), (loaded, notes) = ways(1), ways(load)
    assert loaded.hops.keys() == quiet.hops.keys() >= {("cpu", "worker:0"), (LOOP, "cpu")}
    for way, seconds in quiet.hops.items():
        assert loaded.hops[way] == pytest.approx(seconds, rel=0.33, abs=1e-6), way
    assert quiet.loop is not None
    assert loaded.loop is not None
    assert 1 / 1.5 < loaded.loop.feed_s / quiet.loop.feed_s < 1.5
    assert 1 / 1.5 < loaded.loop.land_s / quiet.loop.land_s < 1.5
    assert notes == []


def test_what_the_machine_hides_is_left_out_and_said() -> None:
    found, notes = ways(1, jitter=1e6)
    assert notes
    for note in notes:
        assert "could not be measured, since no runs agreed" in note
    for first, second in found.hops:
        assert f"the way from {first} to {second}" not in " ".join(notes)


class Cores:
    """Devices that each have a core, and are slower by a share for each other one that works."""

    def __init__(self, each_ns: Sequence[int], share: float, load: int, jitter: float) -> None:
        self._each_ns, self._share = each_ns, share
        self._cores = [Core(load, jitter, seed) for seed in range(len(each_ns))]
        self._working: set[int] = set()
        self._now = 0

    def works(self) -> list[Work]:
        return [partial(self._work, index) for index in range(len(self._cores))]

    async def _work(self, index: int, items: int) -> int:
        self._working.add(index)
        await trio.lowlevel.checkpoint()
        slower = 1 + self._share * (len(self._working) - 1)
        await trio.lowlevel.checkpoint()
        self._working.discard(index)
        spent = self._cores[index].spend(items * self._each_ns[index] * slower)
        self._now += spent
        return spent

    def clock(self) -> int:
        return self._now


def shared(each_ns: Sequence[int], share: float, load: int, jitter: float = 0.05) -> float | None:
    cores = Cores(each_ns, share, load, jitter)
    return trio.run(measure_contention, cores.works(), cores.clock)


@pytest.mark.parametrize("load", [1, 2, 4, 16])
@pytest.mark.parametrize("each_ns", [[400_000, 400_000], [900_000, 60_000, 300_000]])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_loaded_machine_tells_the_same_contention(
    each_ns: Sequence[int], share: float, load: int
) -> None:
    found = shared(each_ns, share, load)
    assert found is not None
    slower = len(each_ns) - 1
    assert 1 + slower * found == pytest.approx(1 + slower * share, rel=0.06)


def test_rounds_that_are_never_alike_tell_nothing() -> None:
    assert shared([400_000, 400_000], 0.3, load=1, jitter=1e4) is None


def test_rounds_that_others_may_have_interrupted_tell_nothing() -> None:
    assert shared([30_000_000, 400_000], 0.3, load=1) is None


def test_a_round_takes_all_devices_as_long() -> None:
    counts = []

    async def work(each_ns: int, items: int) -> int:
        await trio.lowlevel.checkpoint()
        counts.append((each_ns, items))
        return each_ns * items

    async def run() -> None:
        rounds = Disturbance([partial(work, 500_000), partial(work, 100_000)])
        await rounds.warm_up()
        counts.clear()
        await rounds.round()

    trio.run(run)
    assert set(counts) == {(500_000, 2), (100_000, 10)}


def test_large_models_are_run_from_their_beginning_on_only() -> None:
    costs, pins = pl.Costs().scaled("Relu", 10), {"*": "cpu"}
    large = pl.plan(chain(50, 512), ["cpu", "worker:0"], pin=pins, passes=(), costs=costs)
    few, all_ = extract_beginning(large), extract_beginning(pl.plan(chain(3), ["cpu"], passes=()))
    assert 0 < len(few.nodes) < 50
    assert few.inputs == ("x",)
    assert len(all_.nodes) == 3
