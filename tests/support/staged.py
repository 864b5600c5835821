"""An open plan on stepped devices, and items on it whose pace the test decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import plait as pl
from fake_devices import POISON, SteppedDevice
from plait.devices.memory import Arena
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.plans.regions import ADMISSION, Region
from plait.scheduler.runtime.opened.executor import Execution
from plait.scheduler.runtime.opened.open_plan import OpenPlan
from plait.scheduler.runtime.opened.region_guard import RegionGuard
from plait.scheduler.runtime.opened.slot import Slot


def ringed(plan: pl.Plan, copies: int) -> pl.Plan:
    """Return the plan with no more copies of a region than this."""
    assert plan.memory is not None
    pools = {
        name: replace(
            pool,
            regions={
                region.name: replace(region, copies=min(region.copies, copies))
                for region in pool.regions.values()
            },
        )
        for name, pool in plan.memory.pools.items()
    }
    return replace(plan, memory=replace(plan.memory, pools=pools))


class PoisoningGuard(RegionGuard):
    """RegionGuard that poison what an item has released, before anybody else can have it."""

    def __init__(self, open_plan: OpenPlan) -> None:
        assert open_plan.plan.memory is not None
        self._regions = [one for one in open_plan.plan.memory.regions if one.claims]
        super().__init__(self._regions)
        self._arenas = open_plan.arenas.made
        self._complete: dict[int, set[int]] = {}

    def admit(self) -> int:
        item = super().admit()
        self._complete[item] = set()
        return item

    def complete(self, item: int, step: int) -> None:
        complete = self._complete[item]
        before = [set(region.releases) <= complete for region in self._regions]
        complete.add(step)
        for region, released in zip(self._regions, before, strict=True):
            if not released and set(region.releases) <= complete:
                self._poison(item, region)
        super().complete(item, step)

    def _poison(self, item: int, region: Region) -> None:
        arena: Arena | None = self._arenas.get((region.memory, region.name, item % region.copies))
        if arena is not None:
            arena.buffer.fill(POISON)


class Known(Estimates):
    """All steps are quick, or none is, whatever time they take: tests must not depend on it."""

    __slots__ = ("_quick",)

    def __init__(self, quick: bool) -> None:
        super().__init__(())
        self._quick = quick

    def note(self, step: int, ns: int) -> None:
        pass

    def is_quick(self, step: int) -> bool:
        return self._quick


class Guest:
    """An item on stage.

    Attributes
    ----------
    results : dict of str to array
        Copied when it has ended, as they are landed.
    """

    def __init__(self, index: int, inputs: dict[str, Array], number: int) -> None:
        self.index, self.inputs, self.number = index, inputs, number
        self.results: dict[str, Array] = {}
        self.slot: Slot
        self.execution: Execution


class Stage:
    """Devices, an open plan on them, and items whose pace the test decides.

    `copies` is how many of each region there are at most; `quick` if all steps are taken to be.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Sequence[SteppedDevice],
        pins: dict[str, str],
        slots: int = 1,
        copies: int | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.devices = {device.name: device for device in devices}
        self.plan = pl.plan(graph, devices, pin=pins, max_in_flight=slots)
        if copies is not None:
            self.plan = ringed(self.plan, copies)
        for device in devices:
            device.open()
        self.open_plan = OpenPlan(self.plan, self.devices)
        self.open_plan.estimates = Known(quick)
        self.open_plan.open()
        if self.open_plan.guard is not None:
            self.open_plan.guard = PoisoningGuard(self.open_plan)
        self.guard: RegionGuard | None = self.open_plan.guard
        self.free = list(range(slots))
        self.finished: list[int] = []

    def start(self, index: int, inputs: dict[str, Array]) -> Guest:
        """Admit an item; it starts once what it is fed into is free."""
        number = self.free.pop() if self.guard is None else self.guard.admit()
        guest = Guest(index, inputs, number)
        begin = partial(self._begin, guest)
        if self.guard is None or self.guard.claim(number, ADMISSION, begin):
            begin()
        return guest

    def _begin(self, guest: Guest) -> None:
        guest.slot = self.open_plan.make_slot(guest.number % self.open_plan.period)
        guest.slot.feeds.write(guest.inputs)
        ended = partial(self._land, guest)
        guest.execution = Execution(self.open_plan, guest.slot, ended, guest.number)
        guest.execution.start()

    def _land(self, guest: Guest) -> None:
        guest.results = {name: array.copy() for name, array in guest.slot.results.items()}
        self.finished.append(guest.index)
        if self.guard is None:
            self.free.append(guest.number)
        else:
            self.guard.leave(guest.number)

    def busy(self) -> list[SteppedDevice]:
        return [device for device in self.devices.values() if device.queue]

    def run_all(self, random: Random) -> None:
        while busy := self.busy():
            random.choice(busy).step()


def devices() -> list[SteppedDevice]:
    return [SteppedDevice("a"), SteppedDevice("b"), SteppedDevice("c", private=False)]


def pins(graph: Graph, random: Random) -> dict[str, str]:
    return {node.name: random.choice("abc") for node in graph.nodes}
