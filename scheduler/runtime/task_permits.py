"""Permits that tasks of trio wait for."""

from __future__ import annotations

import trio

from ..dispatch.back_pressure import Permits


class TaskPermits(Permits):
    """Permits, each of which goes to the task that has waited longest.

    Attributes
    ----------
    waiting : trio.lowlevel.ParkingLot
        The tasks that wait; those that are woken hold a permit.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.waiting = trio.lowlevel.ParkingLot()

    async def acquire(self) -> None:
        """Wait for a permit; a checkpoint in any case."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.take():
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self.waiting.park()

    @trio.lowlevel.enable_ki_protection
    def give_back(self, _: object = None) -> None:
        if self.waiting:
            self.waiting.unpark()
        else:
            self.free += 1
