"""How a plan is opened while devices may die."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import TypeAlias

import trio

from ...devices.device import Device
from ...devices.errors import DeviceLostError
from ..faults.recovery import Recovery
from ..planning import Plan
from .lanes import OpenLanes
from .open_plan import Lanes, OpenPlan
from .pace import Pace

WithRoom: TypeAlias = Callable[[Callable[[], OpenPlan]], Awaitable[OpenPlan]]
"""Calls on a thread what takes memory."""


class Opener:
    """Opens plans, or what stands in for them; used on the trio thread only.

    Parameters
    ----------
    devices : Mapping of str to Device
        Open.
    pace : Pace
    recovery : Recovery
    with_room : callable
    measure : bool
        Time every node.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        pace: Pace,
        recovery: Recovery,
        with_room: WithRoom,
        *,
        measure: bool,
    ) -> None:
        self._devices = devices
        self._pace = pace
        self._recovery = recovery
        self._with_room = with_room
        self._measure = measure
        self._lanes: Lanes = OpenLanes()

    async def open(self, plan: Plan) -> OpenPlan:
        """Open a plan, or what stands in for it.

        Raises
        ------
        DeviceError
            If a device refuses, or is lost again and again.
        SessionError
            If the session is being closed.
        """
        for deaths in count(1):
            adapted = await self._recovery.adapt(plan)
            lives = self._lives(plan, adapted)
            try:
                open_plan = await self._with_room(partial(self._open, adapted))
            except DeviceLostError:
                if not self._recovery.examine() or deaths > self._recovery.policy.replays:
                    raise
                continue
            if self._lives(plan, adapted) == lives:
                return open_plan
            with trio.CancelScope(shield=True):
                await self._pace.on_thread(open_plan.close)
        raise AssertionError("it counts for ever")

    def _lives(self, plan: Plan, adapted: Plan) -> list[Mapping[str, int | None]]:
        """Return what must not change while a plan is opened: it is lost, or not needed, then."""
        return [self._recovery.lives(each) for each in (plan, adapted)]

    def _open(self, plan: Plan) -> OpenPlan:
        open_plan = OpenPlan(plan, self._devices, self._pace, self._lanes, measure=self._measure)
        open_plan.open()
        return open_plan
