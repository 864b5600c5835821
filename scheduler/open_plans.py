"""The open plans of a session: found by what they are for, opened when first needed, evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import TypeVar

import trio

from ..devices.device import Device
from ..devices.errors import DeviceMemoryError
from ..graph.errors import PlaitError, ShapeError
from .errors import PlanError
from .open_plan import OpenPlan
from .pace import Pace
from .planning import Plan
from .slots import Slots, session_closed

T = TypeVar("T")

KEPT_PLANS = 8
"""Idle plans beyond this number are closed, the least recently used first."""

KEPT_PARTS = 64
"""The same where items go through several plans."""

KEPT_REFUSALS = 64
"""Keys that there is no plan for and that are remembered."""


class OpenPlans:
    """Keeps the plans that were used last open; used on the trio thread only.

    Parameters
    ----------
    devices : Mapping of str to Device
        Open.
    pace : Pace
    measure : bool
        Time every node.
    """

    def __init__(self, devices: Mapping[str, Device], pace: Pace, *, measure: bool) -> None:
        self._devices = devices
        self._pace = pace
        self._measure = measure
        self._slots: OrderedDict[Hashable, Slots] = OrderedDict()
        self._refusals: OrderedDict[Hashable, PlaitError] = OrderedDict()
        self._opening = trio.Lock()
        self._closing = False

    def find(self, key: Hashable) -> Slots | None:
        """Return the slots of an open plan.

        Raises
        ------
        SessionError
            If the session is being closed.
        """
        slots = self._slots.get(key)
        if self._closing:
            raise session_closed()
        if slots is not None:
            self._slots.move_to_end(key)
        return slots

    async def open(
        self, key: Hashable, make: Callable[[], Plan], *, kept: int | None = None
    ) -> Slots | None:
        """Return the slots of an open plan; it is made and opened unless somebody did meanwhile.

        None stands for a plan that cannot be opened, since not all its shapes are known. `kept` is
        how many plans stay open at most if they are idle, `KEPT_PLANS` when left out.

        Raises
        ------
        PlaitError
            What making the plan raises.
        DeviceError
            If a device refuses.
        SessionError
            If the session is being closed.
        """
        async with self._opening:
            slots = self.find(key)
            if slots is not None:
                return slots
            plan = await self._make(key, make)
            if not plan.is_static:
                return None
            await self._evict(keep=(kept or KEPT_PLANS) - 1)
            open_plan = await self._with_room(partial(self._open, plan))
            self._slots[key] = Slots(open_plan, self._with_room, self._pace)
        return self.find(key)

    def refuse(self) -> None:
        """Open no more, give out no more slots, and turn away whoever waits for one."""
        self._closing = True
        for slots in self._slots.values():
            slots.refuse()

    def closings(self) -> Iterator[Callable[[], None]]:
        """Yield what to call, on a thread, to close all plans."""
        for slots in list(self._slots.values()):
            yield slots.open_plan.close
        self._slots.clear()

    async def _make(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """Make a plan; if there is none for a key, that is found out once."""
        if key in self._refusals:
            raise copy(self._refusals[key])
        try:
            return await self._pace.on_thread(make)
        except (PlanError, ShapeError) as error:
            self._refusals[key] = copy(error)
            if len(self._refusals) > KEPT_REFUSALS:
                self._refusals.popitem(last=False)
            raise

    def _open(self, plan: Plan) -> OpenPlan:
        open_plan = OpenPlan(plan, self._devices, self._pace, measure=self._measure)
        open_plan.open()
        return open_plan

    async def _with_room(self, make: Callable[[], T]) -> T:
        """Make something on a thread; if there is no memory for it, idle plans give way first."""
        try:
            return await self._pace.on_thread(make)
        except DeviceMemoryError:
            if not await self._evict(keep=0):
                raise
            return await self._pace.on_thread(make)

    async def _evict(self, keep: int) -> bool:
        """Close idle plans until `keep` plans are left; say whether one was closed."""
        evicted = False
        while len(self._slots) > keep:
            # Chosen anew each time: while one is closed, others may come into use.
            idle = (key for key, slots in self._slots.items() if slots.is_idle)
            key = next(idle, None)
            if key is None:
                break
            slots, evicted = self._slots.pop(key), True
            with trio.CancelScope(shield=True):
                await self._pace.on_thread(slots.open_plan.close)
        return evicted
